"""Step costs: errors on measurements that the fits had not seen, and derived parts against measured ones."""

from pathlib import Path

import msgspec
import numpy as np

from eldr.bench.cost_parts import SOURCES, Parts
from eldr.bench.latency_tables import read_forced
from eldr.bench.model_shapes import QWEN3_30B
from eldr.sim import cost_names, named_cost
from eldr.sim.fitting import fit_moe


class CostCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted part. error: mean |predicted / measured - 1| of measurements that were left out of the fit."""

    cost: str
    part: str
    source: str
    points: int
    r2: float | None
    error: float | None


class RestCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of a step at batch 32, derived as where nobody measured it, against measured kernels."""

    gpu: str
    derived_ms: float
    measured_ms: float
    error: float
    share_of_step: float


def check_costs(folder: Path) -> list[CostCheck]:
    """Every fitted part of every cost file, and the forced-routing grid by batch size."""
    fits = [(name, fit) for name in cost_names() for fit in named_cost(name).fits if fit.cv_error is not None]
    checks = [
        CostCheck(cost=name, part=f.part, source=f.source, points=f.points, r2=f.r2, error=f.cv_error)
        for name, f in fits
    ]
    return [*checks, *_forced_by_batch(folder)]


def _forced_by_batch(folder: Path) -> list[CostCheck]:
    """The grid on an RTX PRO 6000: all points of a batch size predicted from the other batch sizes."""
    grid = read_forced(folder).up_to(256)
    checks = []
    for tokens in np.unique(grid.tokens):
        out = grid.tokens == tokens
        fit = fit_moe(grid.active[~out], grid.tokens[~out], grid.latency_us[~out])
        a0, a1, b = fit.coefficients
        predicted = a0 + a1 * grid.active[out] + b * tokens
        error = float(np.abs(predicted / grid.latency_us[out] - 1).mean())
        checks.append(
            CostCheck(
                cost="rtx-pro-6000-qwen3-30b-a3b",
                part=f"moe, forced routing, batch {tokens:g}",
                source="forced routing",
                points=int(out.sum()),
                r2=None,
                error=error,
            )
        )
    return checks


def check_rest(folder: Path) -> list[RestCheck]:
    """Qwen3-30B-A3B, the only model whose other kernels were measured."""
    parts, checks = Parts(folder), []
    for gpu in ("H200", "H100", "RTX PRO 6000"):
        derived, (measured, _) = parts.derived_rest(gpu, QWEN3_30B), parts.rest(gpu, QWEN3_30B)
        ours, theirs = ((rest.fixed_us + 32 * rest.token_us) / 1e3 for rest in (derived, measured))
        name = next(f"{s.gpu} {s.shape.name}" for s in SOURCES if s.gpu == gpu).lower().replace(" ", "-")
        step_ms = named_cost(name).step_s(100, 32, 32_000) * 1e3
        checks.append(
            RestCheck(
                gpu=gpu,
                derived_ms=ours,
                measured_ms=theirs,
                error=ours / theirs - 1,
                share_of_step=theirs / step_ms,
            )
        )
    return checks
