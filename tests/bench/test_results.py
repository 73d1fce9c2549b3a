import numpy as np
import pytest

from eldr.bench.results import PolicyRun, change, row, rows
from eldr.bench.scrape import Steps

from .made_up import reply, run, steps


def test_a_row_is_over_all_steps_and_requests() -> None:
    replies = [reply(n, f"d{n % 2}", tpot_s=0.010 + 0.001 * n, ttft_s=0.1 + 0.01 * n) for n in range(5)]
    counters = {"d0": steps(10.0, 100), "d1": steps(20.0, 300), "d2": Steps()}
    entry = row([PolicyRun("jsq", 0, replies, counters, [])])
    assert entry.active_experts == pytest.approx(
        (10 * 100 + 20 * 300) / 400
    )  # a step counts once, wherever it ran
    assert entry.mean_batch == pytest.approx(6)
    assert entry.tpot_p50_ms == pytest.approx(12)
    assert entry.tpot_p99_ms == pytest.approx(np.percentile([10, 11, 12, 13, 14], 99))
    assert entry.ttft_p50_ms == pytest.approx(120)
    assert entry.per_worker == {"d0": 3, "d1": 2, "d2": 0}


def test_repeats_are_joined_and_kept_apart() -> None:
    first, second = run("jsq", 10.0, 0.01), run("jsq", 12.0, 0.02, repeat=1)
    entry = row([first, second])
    assert (entry.repeats, entry.requests) == (2, 60)
    assert entry.active_experts == pytest.approx(11)
    assert entry.active_experts_by_repeat == pytest.approx([10, 12])
    assert entry.tpot_p50_ms_by_repeat == [first.tpot_p50_ms, second.tpot_p50_ms]


def test_the_change_is_against_the_best_baseline_of_each_number() -> None:
    table = rows([run("jsq", 10.0, 0.03), run("random", 12.0, 0.02), run("locality_band", 8.0, 0.019)])
    active = change(table, "locality_band", lambda entry: entry.active_experts)
    tpot = change(table, "locality_band", lambda entry: entry.tpot_p50_ms)
    assert active is not None
    assert tpot is not None
    assert (active.baseline, active.ratio) == ("jsq", pytest.approx(-0.2))
    assert tpot.baseline == "random"
    assert tpot.ratio == pytest.approx(table[2].tpot_p50_ms / table[1].tpot_p50_ms - 1)


def test_no_change_without_a_baseline_or_the_policy() -> None:
    table = rows([run("locality_band", 8.0, 0.019)])
    assert change(table, "locality_band", lambda entry: entry.active_experts) is None
    assert change(rows([run("jsq", 8.0, 0.019)]), "locality_band", lambda entry: entry.active_experts) is None
