"""The simulated runs that figures share, by name, and what is read off them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import product

from eldr.bench.results import BASELINES
from eldr.paper.figure import Finding, Outputs, Role
from eldr.paper.measure.serving import served
from eldr.paper.pieces import Piece
from eldr.paper.sources import MODELS, WORKLOADS
from eldr.paper.stats import interval
from eldr.traces.presets import SHAPES

SEEDS = (0, 1, 2, 3, 4)
RATES = (20, 40, 60, 80, 100)
"""Requests a second, the paper's range."""

TRACED_RATES = (20, 60, 100)
"""Of cells whose expert choices were recorded."""

ABLATED = 60
"""The rate of the ablations: the middle of the range."""

OURS = "locality_band"
LABELS = "domain_label"
ROUTERS = (*BASELINES, LABELS, OURS)
CELLS = tuple(product(MODELS, WORKLOADS))
"""The six cells of the paper's evaluation."""

TPOT = {"tpot_p50_ms": "median TPOT (ms)", "tpot_p99_ms": "p99 TPOT (ms)"}

FIRST_HAND = "round_robin"
"""What the paper's ablations compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A setting of `measure.serving.served` but for the seed."""

    model: str
    workload: str
    router: str = OURS
    rate: float = ABLATED
    prefill: int = 8
    decode: int = 16
    tau: float = 0.1
    transformation: str = "idf"
    clustering: str = "balanced"
    gated: bool = False
    prefix_tokens: int = 0
    prefix_cache: bool = False

    def name(self, seed: int) -> str:
        """The run's name among the pieces of a figure: what is not as usual, and the seed."""
        return f"{_unusual(self)} seed={seed}"

    def of(self, outputs: Outputs, metric: str) -> list[float]:
        """A metric of it, one value a seed."""
        return [float(outputs[self.name(seed)][metric]) for seed in SEEDS]


def cell(model: str, workload: str) -> list[Run]:
    """Our runs of a cell, one a rate."""
    rates = RATES if (model, workload) in CELLS else TRACED_RATES
    return [Run(model=model, workload=workload, rate=rate) for rate in rates]


def routed(runs: Iterable[Run]) -> dict[str, Piece]:
    """The pieces of some runs under every router."""
    return pieces([replace(run, router=router) for run in runs for router in ROUTERS])


@cache
def _unusual(run: Run) -> str:
    values = {field.name: (getattr(run, field.name), field.default) for field in fields(run)}
    return " ".join(f"{key}={value}" for key, (value, usual) in values.items() if value != usual)


def pieces(runs: Iterable[Run]) -> dict[str, Piece]:
    """The pieces of some runs with every seed; those of one model, workload and seed stay in one process."""
    return {
        run.name(seed): Piece(served, {**asdict(run), "seed": seed}, _world(run, seed))
        for seed in SEEDS
        for run in runs
    }


def _world(run: Run, seed: int) -> str:
    return f"{run.model} {run.workload} {seed} {run.gated}"


def change(outputs: Outputs, run: Run, other: Run, metric: str) -> list[float]:
    """By how many percent a metric differs from another run's, one value a seed."""
    pairs = zip(run.of(outputs, metric), other.of(outputs, metric), strict=True)
    return [100 * (own / base - 1) for own, base in pairs]


def best_baseline(outputs: Outputs, run: Run, metric: str) -> Run:
    """The same run with the load-balancing policy whose metric is the lowest, mean over seeds."""
    others = [replace(run, router=name) for name in BASELINES]
    return min(others, key=lambda other: sum(other.of(outputs, metric)))


def against_best(outputs: Outputs, runs: Sequence[Run], metric: str) -> list[float]:
    """Percent against the best baseline of each run (a run a rate), averaged over the runs; one value a
    seed."""
    changes = [change(outputs, run, best_baseline(outputs, run, metric), metric) for run in runs]
    return [sum(of_seed) / len(of_seed) for of_seed in zip(*changes, strict=True)]


def against(outputs: Outputs, runs: Sequence[Run], router: str, metric: str) -> list[float]:
    """The same against one other router."""
    changes = [change(outputs, run, replace(run, router=router), metric) for run in runs]
    return [sum(of_seed) / len(of_seed) for of_seed in zip(*changes, strict=True)]


def finding(
    claim: str, run: Run, values: Sequence[float], role: Role = "number", *, source: str = ""
) -> Finding:
    """A finding from one value a seed, on the model and workload of a run."""
    mean, low, high = interval(values)
    recorded = run.model not in SHAPES
    return Finding(
        claim=claim,
        source=source or f"{run.model}, {run.workload}",
        evidence="trace" if recorded else "model",
        role="direction" if recorded else role,
        mean=mean,
        low=low,
        high=high,
        over=f"95 % over {len(values)} seeds",
    )


def spread_of(outputs: Outputs, run: Run, metric: str) -> tuple[float, float, float]:
    """Mean of a metric and the ends of its 95 % interval over seeds."""
    return interval(run.of(outputs, metric))
