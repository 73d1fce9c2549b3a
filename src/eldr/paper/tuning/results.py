"""What the closed loops gave, as docs/bench/tuning.json keeps it."""

from collections.abc import Iterable, Iterator

import msgspec

from eldr.paper.beyond.cases import Case


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a study found, and what is true of the requests that it compared.

    r2: of the learned cost; active_ratio: its cost of an active expert over the true one. replay_error: by
    what share the replayed mean TPOT of the current choice is above the observed one, None where the choice
    is too new; jsq_error: the replayed one of JSQ above that of a true run. saving, low, high: against JSQ;
    true_saving: None where there is no fixed run of the current choice.
    """

    r2: float | None
    active_ratio: float
    replay_error: float | None
    jsq_error: float
    saving: float
    low: float
    high: float
    true_saving: float | None

    @property
    def off_points(self) -> float:
        """Estimated less true saving; only where the true one is known."""
        assert self.true_saving is not None
        return 100 * (self.saving - self.true_saving)

    @property
    def holds(self) -> bool:
        """Is the true saving in the interval? Only where it is known."""
        assert self.true_saving is not None
        return self.low <= self.true_saving <= self.high


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A study of the window. estimate: None where it had too little.

    cpu_s: what it took. said: what the router would log.
    """

    at_s: float
    current: str
    estimate: Estimate | None
    cpu_s: float
    said: str


class Phase(msgspec.Struct, frozen=True):
    """TPOT of the requests that were decided in a part of a run, in ms."""

    mean_ms: float
    p99_ms: float


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose policy the tuner may change. begin: before the first study; final: after the last.

    changes: when, in s, and to what. choice: at the end.
    """

    begin: Phase
    final: Phase
    changes: list[tuple[float, str]]
    choice: str
    rounds: list[Round]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A case with one seed: loops by their start, beside fixed runs of the default and JSQ.

    noise: on the times that the router sees, see live.run. rate: requests a second. every_s: between two
    studies. default, jsq: of the final phase.
    """

    source: str
    workers: int
    batch: int
    noise: float = 0.0
    seed: int
    evidence: str
    rate: float
    every_s: float
    default_begin: Phase
    default: Phase
    jsq: Phase
    loops: dict[str, Loop]

    @property
    def case(self) -> Case:
        return Case(self.source, self.workers, self.batch)

    @property
    def title(self) -> str:
        noise = f", noise {self.noise:g}" if self.noise else ""
        return f"{self.source}, {self.workers} workers, {self.case.load}{noise}"

    def change(self, start: str, field: str = "mean_ms") -> float:
        """Percent by which a loop's final phase is above the fixed default's."""
        return 100 * float(getattr(self.loops[start].final, field) / getattr(self.default, field) - 1)

    def change_at_begin(self, start: str) -> float:
        """The same of the mean before the first study."""
        return 100 * (self.loops[start].begin.mean_ms / self.default_begin.mean_ms - 1)


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """All runs. machine: what the CPU times were measured on."""

    created_at: str
    machine: dict[str, object]
    runs: list[Run]

    def titles(self) -> list[str]:
        """The cases, in order."""
        return list(dict.fromkeys(run.title for run in self.runs))

    def of(self, title: str) -> list[Run]:
        """The runs of a case."""
        return [run for run in self.runs if run.title == title]

    def with_start(self, start: str) -> Iterator[Run]:
        """Runs that have a loop with this start."""
        return (run for run in self.runs if start in run.loops)


def rounds(runs: Iterable[Run]) -> list[Round]:
    """All studies of these runs."""
    return [one for run in runs for loop in run.loops.values() for one in loop.rounds]


def known(runs: Iterable[Run]) -> list[Estimate]:
    """Estimates of these runs of which the truth is known."""
    found = [one.estimate for one in rounds(runs)]
    return [one for one in found if one is not None and one.true_saving is not None]
