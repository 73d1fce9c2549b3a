"""What the suite found, as one file, and the criteria that a default policy must meet."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from eldr.bench.machine import describe_machine
from eldr.paper.beyond.cases import BAND, CASES, HELD_OUT, JSQ, LIVE, ORACLES, RULES, Case
from eldr.paper.beyond.suite import Runs, piece
from eldr.paper.stats import interval

CHANGED = {"p50": "p50_ms", "p99": "p99_ms", "mean": "mean_ms", "active": "active"}
"""Fields of a Change and what they are read from."""

GOAL = 1.2
"""Times the band's reduction of the median, on average over the cases."""


class Spread(msgspec.Struct, frozen=True):
    """A mean over seeds and the ends of its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """For tables; of percentages."""
        return f"{self.mean:+.1f} ± {(self.high - self.low) / 2:.1f} %"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A rule against JSQ at the same seeds, percent: TPOT's median, p99 and mean, and active experts a step.

    over_band: its median against the band's, percent, likewise. busiest: of the busiest worker's requests
    over the mean; batch: requests a step.
    """

    p50: Spread
    p99: Spread
    mean: Spread
    active: Spread
    over_band: Spread
    busiest: float
    batch: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A case. jsq: TPOT in ms (p50_ms, p99_ms), active experts and batch under JSQ. rules: name -> change."""

    source: str
    workers: int
    load: str
    evidence: str
    jsq: dict[str, float]
    rules: dict[str, Change]

    @property
    def title(self) -> str:
        return f"{self.source}, {self.workers} workers, {self.load}"

    @property
    def best_oracle(self) -> float:
        """The largest reduction of the mean TPOT that an oracle reached, percent."""
        return max(-self.rules[name].mean.mean for name in ORACLES if name in self.rules)

    @property
    def best_median(self) -> float:
        """The lowest change of the median TPOT that an oracle reached, percent."""
        return min(self.rules[name].p50.mean for name in ORACLES if name in self.rules)


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """docs/bench/beyond.json. created_at: UTC, ISO 8601."""

    created_at: str
    machine: dict[str, Any]
    seeds: int
    rows: list[Row]

    def average(self, rule: str, field: str) -> float:
        """Of a field of Change, over the cases."""
        return mean([getattr(row.rules[rule], field).mean for row in self.rows])

    def share(self, rule: str) -> float:
        """Of the best oracle's reduction of the mean TPOT, percent: the sums over the cases divided."""
        return -100 * self.average(rule, "mean") / mean([row.best_oracle for row in self.rows])

    def below_band(self, rule: str) -> list[Row]:
        """Cases in which the rule's median is above the band's by more than the seeds' spread."""
        return [row for row in self.rows if row.rules[rule].over_band.low > 0]

    def beyond_oracles(self, rows: Sequence[Row]) -> list[Row]:
        """Those of these cases in which no oracle's median is as low as the band's."""
        return [row for row in rows if row.rules[BAND].p50.mean < row.best_median]

    def above_jsq(self, rule: str) -> list[Row]:
        """Cases in which the rule's p99 is above JSQ's by more than the seeds' spread."""
        return [row for row in self.rows if row.rules[rule].p99.low > 0]

    def against_band(self, rule: str) -> float:
        """The average reduction of the median over the band's."""
        return self.average(rule, "p50") / self.average(BAND, "p50")

    def dominates(self, rule: str) -> bool:
        """Whether a rule meets all three criteria."""
        return not self.below_band(rule) and not self.above_jsq(rule) and self.against_band(rule) >= GOAL


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def collect(runs: Runs) -> Saved:
    """All cases under the rules that were run in all of them. EldrError where these lack one of LIVE."""
    rules = [rule for rule in RULES.names() if rule in LIVE or runs.complete(rule)]
    return Saved(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        seeds=len(HELD_OUT),
        rows=[_row(runs, case, rules) for case in CASES],
    )


def _row(runs: Runs, case: Case, rules: Sequence[str]) -> Row:
    metrics = ("p50_ms", "p99_ms", "active", "batch")
    return Row(
        source=case.source,
        workers=case.workers,
        load=case.load,
        evidence=piece(case, JSQ, HELD_OUT[0], runs.kept).load(runs.kept)["evidence"],
        jsq={metric: mean(runs.of(case, JSQ, metric)) for metric in metrics},
        rules={rule: _change(runs, case, rule) for rule in rules if rule != JSQ},
    )


def _change(runs: Runs, case: Case, rule: str) -> Change:
    against_jsq = {
        name: Spread(*interval(runs.change(case, rule, metric, JSQ))) for name, metric in CHANGED.items()
    }
    return Change(
        **against_jsq,
        over_band=Spread(*interval(runs.change(case, rule, "p50_ms", BAND))),
        busiest=mean(runs.of(case, rule, "busiest")),
        batch=mean(runs.of(case, rule, "batch")),
    )
