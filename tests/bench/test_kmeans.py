"""The K-means benchmark: what it measures, its limit of time, and its table."""

import os
import resource
import signal
from typing import Any

import numpy as np
import pytest

from eldr.bench import kmeans
from eldr.bench.kmeans_page import table


def test_signatures_are_unit_rows_of_any_number() -> None:
    rows = kmeans.draw_signatures(50, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert rows.shape == (50, kmeans.LENGTH)


@pytest.mark.parametrize("method", ["eldr", "lloyd"])
def test_the_objectives_by_hand(method: str) -> None:
    found = kmeans.measure(method, 60, 5)
    rows = kmeans.draw_signatures(60, np.random.default_rng(0))
    labels = kmeans.METHODS[method](rows, 5)
    cosine = inertia = 0.0
    for cluster in range(5):
        own = rows[labels == cluster].astype(np.float64)
        direction = own.sum(axis=0) / np.linalg.norm(own.sum(axis=0))
        cosine += float((own @ direction).sum())
        inertia += float(((own - own.mean(axis=0)) ** 2).sum())
    assert found["cosine"] == pytest.approx(cosine / 60, abs=1e-5)
    assert found["inertia"] == pytest.approx(inertia / 60, abs=1e-5)
    assert (found["smallest"], found["largest"]) == (12, 12)


def test_ours_is_no_worse_than_a_lloyd_start() -> None:
    ours, lloyd = (kmeans.measure(method, 200, 10)["cosine"] for method in ("eldr", "lloyd"))
    assert ours >= lloyd


def test_the_gap_is_within_its_bound() -> None:
    found = kmeans.measure_gap(300, 6)
    assert -1e-6 <= found["gap"] <= found["bound"] + 1e-6


def over_the_limit(_: int) -> dict[str, Any]:
    """What the kernel does to a process that used up its CPU time."""
    assert resource.getrlimit(resource.RLIMIT_CPU) == (7, 7)
    os.kill(os.getpid(), signal.SIGXCPU)
    raise AssertionError("still here")


def quick(value: int) -> dict[str, Any]:
    return {"value": value}


def test_a_run_ends_at_its_limit() -> None:
    assert kmeans.within(10, quick, 3) == {"value": 3}
    assert kmeans.within(7, over_the_limit, 0) == {"limit_s": 7}


def test_the_table_says_what_did_not_end() -> None:
    done = {"cpu_s": 1.25, "cosine": 0.5, "inertia": 0.4, "smallest": 1, "largest": 2}
    row = {"n": 10_000, "k": 8, "eldr": done, "lloyd": done, "k-means-constrained": {"limit_s": 60}}
    row["prices"] = {"near_s": 0.5, "bound": 0.00123}
    report = {"machine": {"processor": "made-up"}, "starts": 4, "rows": [row, {**row, "eldr": {}}]}
    assert "| 10,000 | 8 | 0.5000, 1.2 s | 0.5000, 1.2 s | not in 60 s | 0.50 | - | - | 0.123 |" in table(
        report
    )
    assert "| 10,000 | 8 | - | 0.5000" in table(report)
