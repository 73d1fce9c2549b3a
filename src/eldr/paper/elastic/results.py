"""What the study found, as one file: each run's numbers, one a seed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from eldr.bench.machine import describe_machine
from eldr.paper.beyond.cases import SEEDS
from eldr.paper.beyond.results import Spread
from eldr.paper.beyond.suite import ratios
from eldr.paper.elastic.cases import BIN_S, CASES, PHASES, Case, piece
from eldr.paper.stats import interval


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A case; fields as eldr.paper.elastic.cases.measured gives them, one value a seed.

    times_ms: [seeds, bins, 2].
    """

    case: Case
    evidence: str
    p50_ms: dict[str, list[float]]
    p99_ms: dict[str, list[float]]
    broken: list[float]
    again: list[float]
    refused: list[float]
    joined: list[float]
    moved: list[list[float]]
    times_ms: list[list[list[float]]]

    def change(self, metric: str, phase: str) -> Spread:
        """Of "p50_ms" or "p99_ms" in a phase against the phase before the change, percent."""
        values: dict[str, list[float]] = getattr(self, metric)
        return Spread(*interval(ratios(values[phase], values["before"])))

    def against(self, other: "Row", metric: str, phase: str) -> Spread:
        """Of a metric against another row's in the same phase, percent."""
        own, theirs = getattr(self, metric)[phase], getattr(other, metric)[phase]
        return Spread(*interval(ratios(own, theirs)))


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """docs/bench/elastic.json. created_at: UTC, ISO 8601; bin_s: of times_ms."""

    created_at: str
    machine: dict[str, Any]
    seeds: int
    bin_s: float
    rows: list[Row]

    def of(self, case: Case) -> Row:
        """The row of a case."""
        return next(row for row in self.rows if row.case == case)


def collect(kept: Path) -> Saved:
    """All runs, which must be there."""
    return Saved(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        seeds=len(SEEDS),
        bin_s=BIN_S,
        rows=[_row(case, [piece(case, seed, str(kept)).load(kept) for seed in SEEDS]) for case in CASES],
    )


def _row(case: Case, runs: Sequence[dict[str, Any]]) -> Row:
    found: dict[str, Any] = {name: [run[name] for run in runs] for name in runs[0]}
    for metric in ("p50_ms", "p99_ms"):
        found[metric] = {phase: [run[phase] for run in found[metric]] for phase in PHASES}
    times_ms = np.round(found["times_ms"], 4).tolist()
    row = found | {"case": case, "evidence": runs[0]["evidence"], "times_ms": times_ms}
    return msgspec.convert(row, Row)
