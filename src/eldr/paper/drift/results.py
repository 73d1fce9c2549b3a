"""What the study found, as one file: each run's numbers, one a seed."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from eldr.bench.machine import describe_machine
from eldr.paper.beyond.cases import JSQ, SEEDS
from eldr.paper.beyond.results import Spread
from eldr.paper.beyond.suite import ratios
from eldr.paper.drift.alarms import CHECKS, LEVELS, USERS
from eldr.paper.drift.cases import BATCHES, BIN_S, EVENT_S, METRICS, PHASES, Case, alarms_piece, cases, piece
from eldr.paper.drift.learner import Look
from eldr.paper.stats import interval


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A case; fields as eldr.paper.drift.cases.measured gives them, one value a seed.

    looks: [seeds, looks]. times_ms: [seeds, bins].
    """

    case: Case
    evidence: str
    p50_ms: dict[str, list[float]]
    mean_ms: dict[str, list[float]]
    p99_ms: dict[str, list[float]]
    looks: list[list[Look]]
    times_ms: list[list[float]]

    def against(self, other: "Row", metric: str, phase: str) -> Spread:
        """Of "p50_ms", "mean_ms" or "p99_ms" against another row's in the same phase, percent."""
        own, theirs = getattr(self, metric)[phase], getattr(other, metric)[phase]
        return Spread(*interval(ratios(own, theirs)))

    def until(self, what: str, event_s: float) -> list[float | None]:
        """Seconds from the event to the first look after it with "alarm", or that "moved"; one a seed, None
        where there is none."""
        return [
            next((one.at_s - event_s for one in looks if one.at_s > event_s and _is(one, what)), None)
            for looks in self.looks
        ]


def _is(look: Look, what: str) -> bool:
    return look.alarm if what == "alarm" else look.moved is not None


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """Checks without drift. below: the share with a p-value below each of Saved.levels."""

    source: str
    users: str
    below: list[float]


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """docs/bench/drift.json. created_at: UTC, ISO 8601; bin_s: of times_ms; checks: of each of `alarms`."""

    created_at: str
    machine: dict[str, Any]
    seeds: int
    event_s: float
    bin_s: float
    rows: list[Row]
    checks: int
    levels: list[float]
    alarms: list[Alarms]

    def of(self, case: Case) -> Row:
        """The row of a case."""
        return next(row for row in self.rows if row.case == case)

    def jsq(self, row: Row) -> Row:
        """The row of JSQ on the same requests."""
        return self.of(Case(row.case.source, row.case.event, JSQ))

    def learning(self, event: str) -> Iterator[Row]:
        """Rows of an event whose centroids may change."""
        return (row for row in self.rows if row.case.event == event and row.looks[0])


def collect(kept: Path) -> Saved:
    """All runs, which must be there."""
    alarms = [
        (source, users, alarms_piece(source, users, str(kept))) for source in BATCHES for users in USERS
    ]
    return Saved(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        seeds=len(SEEDS),
        event_s=EVENT_S,
        bin_s=BIN_S,
        rows=[_row(case, [piece(case, seed, str(kept)).load(kept) for seed in SEEDS]) for case in cases()],
        checks=CHECKS,
        levels=list(LEVELS),
        alarms=[Alarms(source=source, users=users, **one.load(kept)) for source, users, one in alarms],
    )


def _row(case: Case, runs: Sequence[dict[str, Any]]) -> Row:
    found: dict[str, Any] = {name: [run[name] for run in runs] for name in runs[0]}
    for metric in METRICS:
        found[metric] = {phase: [run[phase] for run in found[metric]] for phase in PHASES}
    times_ms = np.round(found["times_ms"], 4).tolist()
    row = found | {"case": case, "evidence": runs[0]["evidence"], "times_ms": times_ms}
    return msgspec.convert(row, Row)
