"""The step cost, learned from what requests took."""

import numpy as np
import pytest

from eldr.adapt.batches import batches, prompt_rates
from eldr.adapt.choice import DEFAULT, Choice
from eldr.adapt.costs import PRIOR, learn
from eldr.adapt.span import Span
from eldr.adapt.window import GONE, Window
from eldr.sim.cost import Moe, Rest

from .traffic import BATCH_LED, COST, LAYERS, TOP_K, noise_of, window


def learned(seen: Window):  # type: ignore[no-untyped-def]
    return learn(seen, prompt_rates(seen), Span.of(seen))


@pytest.mark.parametrize("choice", [Choice("jsq"), Choice.of("locality_band", tau=0.1)], ids=str)
def test_a_known_cost_is_recovered(choice: Choice) -> None:
    found = learned(window(choice=choice))
    assert found.source == "window"
    assert found.reason is None
    assert found.cost.active_s == pytest.approx(COST.active_s, rel=0.1)
    usual = 10.0, 8, 0.0
    assert found.cost.step_s(*usual) == pytest.approx(COST.step_s(*usual), rel=0.02)
    assert found.r2 is not None
    assert found.r2 > 0.8


def test_stalls_of_a_few_requests_do_not_count() -> None:
    def stalls(rng: np.random.Generator, number: int) -> np.ndarray:
        return np.where(rng.random(number) < 0.03, 3.0, 1 + 0.01 * rng.standard_normal(number))

    found = learned(window(noise=stalls))
    assert found.cost.active_s == pytest.approx(COST.active_s, rel=0.15)
    assert found.cost.step_s(10.0, 8, 0.0) == pytest.approx(COST.step_s(10.0, 8, 0.0), rel=0.03)


def test_where_only_the_batch_matters_active_experts_are_not_charged() -> None:
    flat = COST.__class__(
        name="flat",
        gpu="none",
        model="none",
        layers=LAYERS,
        experts=16,
        top_k=TOP_K,
        moe=Moe(fixed_us=1000.0, active_us=0.0),
        rest=Rest(token_us=900.0),
    )
    found = learned(window(cost=flat, choice=Choice.of("locality_band", tau=0.1)))
    assert found.reason == "TPOT follows the batch, not its active experts"
    assert found.cost.active_s < 0.1 * COST.active_s
    assert found.cost.sequence_s == pytest.approx(flat.sequence_s, rel=0.1)


def test_noise_that_hides_what_tpot_follows_leaves_both_ends_open() -> None:
    seen = window(choice=DEFAULT, cost=BATCH_LED, rate=20.0, noise=noise_of(0.2))
    found = learned(seen)
    assert found.reason == "TPOT may follow the batch, or its active experts"
    least, most = found.ends
    assert least.active_s < 0.1 * COST.active_s
    assert least.sequence_s == pytest.approx(BATCH_LED.sequence_s, rel=0.2)
    assert most.active_s > COST.active_s
    assert least.active_s < found.cost.active_s < most.active_s
    assert "us an active expert" in str(found)


def test_the_known_ratio_is_believed_where_active_experts_matter_for_certain() -> None:
    found = learned(window(choice=DEFAULT, noise=noise_of(0.2)))
    assert found.reason is None
    assert found.cost == found.ends[1]
    assert found.ends[0].active_s < found.cost.active_s == pytest.approx(COST.active_s, rel=0.25)


def test_where_active_experts_do_not_matter_for_certain_the_known_ratio_is_ruled_out() -> None:
    found = learned(window(choice=DEFAULT, cost=BATCH_LED, rate=20.0))
    assert found.cost == found.ends[1]
    assert found.cost.active_s < 0.1 * COST.active_s


def test_too_few_requests_give_the_prior_at_the_observed_tpot() -> None:
    seen = window(number=90)
    found = learned(seen)
    assert found.source == PRIOR
    assert found.reason is not None
    assert "100 are needed" in found.reason
    saw = batches(seen, prompt_rates(seen))
    usual = np.nanmean(saw.active), np.nanmean(saw.batch)
    assert [end.active_s for end in found.ends] == [0.0, found.cost.active_s]
    for end in found.ends:
        assert end.step_s(usual[0], usual[1], 0.0) == pytest.approx(np.nanmedian(seen.tpot_s), rel=1e-6)
    assert found.cost.step_s(usual[0], usual[1], 0.0) == pytest.approx(np.nanmedian(seen.tpot_s), rel=1e-6)


def small_window(**columns: object) -> Window:
    """Two requests on one worker: 0 s to 10 s and 5 s to 15 s, with two experts each, one of them shared."""
    counts = np.zeros((2, 1, 4), np.uint16)
    counts[0, 0, [0, 1]] = counts[1, 0, [1, 2]] = 7
    given: dict[str, object] = {
        "worker_ids": ("d0",),
        "worker": np.zeros(2, np.int64),
        "decided_s": np.array([0.0, 5.0]),
        "first_token_s": np.array([0.0, 5.0]),
        "finish_s": np.array([10.0, 15.0]),
        "prompt_tokens": np.full(2, 7),
        "output_tokens": np.full(2, 11),
        "counts": counts,
        "top_k": 2,
    }
    return Window(**(given | columns))  # type: ignore[arg-type]


def test_who_decoded_with_whom() -> None:
    seen = small_window()
    saw = batches(seen, prompt_rates(seen))
    np.testing.assert_allclose(saw.batch, [1.5, 1.5])
    np.testing.assert_allclose(saw.active, [2.5, 2.5], rtol=1e-5)


def test_means_over_steps_count_slow_steps_for_less() -> None:
    seen = small_window()
    cost = COST.__class__(
        name="", gpu="", model="", layers=1, experts=4, top_k=2, moe=Moe(fixed_us=0.0, active_us=1e6)
    )
    saw = batches(seen, prompt_rates(seen), cost)  # 5 s of 2 s steps, 5 s of 3 s steps
    np.testing.assert_allclose(saw.active, [5 / (5 / 2 + 5 / 3) * 2] * 2, rtol=1e-5)


def test_what_is_not_known_of_requests() -> None:
    seen = small_window(worker=np.array([0, GONE]), first_token_s=np.array([np.nan, 5.0]))
    saw = batches(seen, prompt_rates(seen))
    assert np.isnan(saw.batch).all()  # one not streamed, the other's worker gone


def test_requests_without_counts_have_the_mean_rates() -> None:
    seen = small_window()
    seen.counts[1] = 0
    rates = prompt_rates(seen)
    np.testing.assert_array_equal(rates[1], rates[0])


def test_a_span_ends_where_requests_would_be_missing() -> None:
    seen = window()
    span = Span.of(seen)
    took_s = seen.finish_s - seen.decided_s
    assert span.start_s == seen.finish_s.min()
    assert span.turn_s == pytest.approx(took_s.mean(), rel=0.1)
    cut_s = seen.finish_s.max() - span.end_s
    assert np.maximum(took_s - cut_s, 0).sum() <= 0.1 * took_s.sum()
    assert cut_s < took_s.max()
