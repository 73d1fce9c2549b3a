"""The suite as pieces of work, and what they gave as one value a seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eldr.errors import EldrError
from eldr.paper.beyond.cases import CASES, HELD_OUT, RULES, Case, measured
from eldr.paper.pieces import Piece


def piece(case: Case, rule: str, seed: int, kept: Path) -> Piece:
    """One run. Those of one world are one group: it is drawn once for all of them."""
    settings = {"source": case.source, "workers": case.workers, "batch": case.batch}
    return Piece(
        measured,
        {**settings, "rule": rule, "seed": seed, "kept": str(kept)},
        f"{case.source} {case.workers} {seed}",
    )


def pieces(kept: Path, rules: Iterable[str] = RULES.names()) -> list[Piece]:
    """All runs of some rules, seed by seed."""
    wanted = list(rules)
    return [piece(case, rule, seed, kept) for seed in HELD_OUT for case in CASES for rule in wanted]


@dataclass(frozen=True, slots=True)
class Runs:
    """The kept results, read when they are asked for."""

    kept: Path

    def of(self, case: Case, rule: str, metric: str) -> list[float]:
        """A metric, one value a seed. EldrError where a run is missing."""
        values = []
        for seed in HELD_OUT:
            one = piece(case, rule, seed, self.kept)
            if not one.path(self.kept).exists():
                raise EldrError(f"no result of {case} under {rule!r}, seed {seed}; run the suite again")
            values.append(float(one.load(self.kept)[metric]))
        return values

    def complete(self, rule: str) -> bool:
        """Whether a rule was run in all cases with all seeds."""
        wanted = pieces(self.kept, [rule])
        return all(one.path(self.kept).exists() for one in wanted)

    def change(self, case: Case, rule: str, metric: str, against: str) -> list[float]:
        """By how many percent a metric is above another rule's, one value a seed."""
        return ratios(self.of(case, rule, metric), self.of(case, against, metric))


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Percent above, pair by pair."""
    return [100 * (value / other - 1) for value, other in zip(values, others, strict=True)]
