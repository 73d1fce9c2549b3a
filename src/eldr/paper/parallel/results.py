"""What the study found, as one file: each run's numbers, one a seed, and what is derived from them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eldr.bench.machine import describe_machine
from eldr.paper.beyond.cases import JSQ, SEEDS
from eldr.paper.beyond.results import Spread
from eldr.paper.beyond.suite import ratios
from eldr.paper.parallel.cases import CANDIDATES, CASES, LIVE, SETTINGS, TRIED, Case, piece
from eldr.paper.parallel.validity import validity
from eldr.paper.parallel.worlds import Setting
from eldr.paper.stats import interval

Values = dict[str, list[float]]
"""Metric -> one value a seed."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A case on workers of one setting. rules: name -> the metrics of eldr.paper.parallel.cases.measured."""

    case: str
    setting: Setting
    rules: dict[str, Values]

    def change(self, rule: str, metric: str, against: str = JSQ) -> Spread:
        """Of a metric against another rule's at the same seeds, percent."""
        return spread(ratios(self.rules[rule][metric], self.rules[against][metric]))

    def mean(self, rule: str, metric: str) -> float:
        """Over the seeds."""
        return interval(self.rules[rule][metric])[0]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """See eldr.paper.parallel.validity."""

    placement: str
    ranks: int
    redundant: int
    batch: int
    counted: float
    expected: float
    of_means: float

    @property
    def error(self) -> float:
        """Of the expected maximum, percent."""
        return 100 * (self.expected / self.counted - 1)

    @property
    def error_of_means(self) -> float:
        """Of the maximum of expectations, percent."""
        return 100 * (self.of_means / self.counted - 1)


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """docs/bench/expert_parallelism.json. created_at: UTC, ISO 8601."""

    created_at: str
    machine: dict[str, Any]
    seeds: int
    rows: list[Row]
    validity: list[Counted]

    def of(self, case: str, setting: Setting) -> Row:
        """The row of a case and setting."""
        return next(row for row in self.rows if (row.case, row.setting) == (case, setting))

    def left(self, row: Row, rule: str) -> float:
        """Share of the median's reduction that is left of what the same GPUs reach with split experts."""
        split = self.of(row.case, Setting(row.setting.gpus, "split"))
        return row.change(rule, "p50_ms").mean / split.change(rule, "p50_ms").mean


def spread(values: Sequence[float]) -> Spread:
    """Mean and 95 % interval."""
    return Spread(*interval(values))


def collect(kept: Path) -> Saved:
    """All runs, which must be there."""
    return Saved(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        seeds=len(SEEDS),
        rows=[_row(case, setting, kept) for case in CASES for setting in SETTINGS],
        validity=msgspec.convert(validity().load(kept), list[Counted]),
    )


def _row(case: Case, setting: Setting, kept: Path) -> Row:
    rules = (*LIVE, *(CANDIDATES if setting in TRIED else ()))
    return Row(
        case=case.title, setting=setting, rules={rule: _values(case, setting, rule, kept) for rule in rules}
    )


def _values(case: Case, setting: Setting, rule: str, kept: Path) -> Values:
    runs = [piece(case, setting, rule, seed, str(kept)).load(kept) for seed in SEEDS]
    return {metric: [float(run[metric]) for run in runs] for metric in runs[0]}
