"""The checks of the simulator, where they need no data, and their page."""

import numpy as np
import pytest

from eldr.bench.sim_validity_active import ActiveCheck
from eldr.bench.sim_validity_cost import CostCheck, RestCheck
from eldr.bench.sim_validity_live import LiveCheck
from eldr.bench.sim_validity_page import page
from eldr.bench.sim_validity_queues import QueueCheck, recursion
from eldr.sim.comparison import Interval, interval


def test_the_recursion_gives_waits_worked_out_by_hand() -> None:
    """Two servers; services of 3 s; the third waits for the first, the fourth for the second."""
    arrivals, services = np.array([0.0, 1.0, 2.0, 2.5]), np.full(4, 3.0)
    assert recursion(arrivals, services, 2) == pytest.approx((0 + 0 + 1.0 + 1.5) / 4)
    assert recursion(arrivals, services, 4) == 0.0


def test_an_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0, None])
    assert found is not None
    assert found.mean == 2.0
    assert found.high == pytest.approx(2.0 + 4.302653 / np.sqrt(3))
    assert interval([None]) is None
    assert interval([5.0]) == Interval(5.0, None, None)


def test_the_page_names_the_worst_and_says_what_was_not_measured() -> None:
    active = [
        ActiveCheck(
            model=name,
            members="mixed",
            batch=8,
            counted=10.0,
            expected=10 * (1 + e),
            error=e,
            batch_error=0.05,
        )
        for name, e in (("small", 0.001), ("large", -0.012))
    ]
    costs = [CostCheck(cost="gpu-model", part="moe", source="s", points=9, r2=0.99, error=0.02)]
    rest = [RestCheck(gpu="GPU", derived_ms=1.0, measured_ms=2.0, error=-0.5, share_of_step=0.1)]
    same, error = Interval(0.0, -0.001, 0.001), Interval(0.01, -0.02, 0.04)
    queues = [QueueCheck(queue="M/D/1", load=0.5, closed_form_s=0.05, error=error, same_input=same)]
    text = page(active, costs, rest, queues, [])
    assert "Mean error 0.65%, largest -1.20% (large, mixed, batch 8)" in text
    assert "| gpu-model | moe | 9 | 0.9900 | 2.0% |" in text
    assert "| M/D/1 | 50% | 50.0 | +1.0% ± 3.0% | +0.0% ± 0.1% |" in text
    assert "Not measured" in text
    live = LiveCheck(
        policy="p2c",
        decode_workers=2,
        decisions=10,
        same=9,
        within_rounding=1,
        known_share=0.8,
        counted=4.0,
        expected=4.1,
        batches_error=0.025,
        live_active=4.0,
        simulated_active=5.0,
        sized_active=4.04,
        sized_error=0.01,
        error=0.25,
        live_batch=1.0,
        simulated_batch=2.0,
        live_tpot_p50_ms=3.0,
        simulated_tpot_p50_ms=4.0,
        step_r2=0.2,
    )
    row = (
        "| 9 of 10 (+1 within rounding) | 4.00 / 4.10 | +2.50% | 4.00 / 4.04 | +1.0% | 4.00 / 5.00 | +25.0% |"
    )
    assert row in page(active, costs, rest, queues, [live])
