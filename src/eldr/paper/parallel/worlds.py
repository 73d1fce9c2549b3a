"""A model like Qwen3-235B-A22B on workers of several GPUs: what a step costs, and where the experts lie."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from eldr.paper.beyond.worlds import World, world_of
from eldr.sim import Placement, StepCost, balanced
from eldr.sim.costs import named_cost

COST = "mi300x-qwen3-235b-a22b"
LIKE = "qwen3-30b-a3b"
"""Its synthetic requests: as many experts and the same top-k, and presets give all shapes its scales."""

REDUNDANT = 16
"""Of 128 experts. EPLB's default is none; DeepSeek has 32 of 256."""

Where = Literal["split", "linear", "balanced", "own"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a worker of `gpus` GPUs holds its experts.

    where: "split": each over all GPUs (tensor parallelism), so a layer waits for none; else each on one GPU:
    "linear": in order; "balanced": as EPLB places them by the load of all requests; "own": as each worker's
    EPLB does by the load of its own, again and again. redundant: experts that are there twice or more.
    """

    gpus: int
    where: Where
    redundant: int = 0

    @property
    def ranks(self) -> int:
        return 1 if self.where == "split" else self.gpus

    @property
    def title(self) -> str:
        name = f"TP {self.gpus}" if self.where == "split" else f"EP {self.gpus}, {self.where}"
        return f"{name} + {self.redundant}" if self.redundant else name


def world_on(setting: Setting, workload: str, workers: int, seed: int, kept: str) -> World:
    """The world of a workload with what its steps cost there."""
    return replace(world_of(f"{LIKE}/{workload}", workers, seed, kept), cost=cost_on(setting))


def cost_on(setting: Setting) -> StepCost:
    """From the cost for four GPUs: all but experts and collectives is split over the GPUs, as there.

    An expert that is split over the GPUs takes each of them its share of the time.
    """
    cost = named_cost(COST)
    part = cost.ranks / setting.gpus
    attention = {name: part * value for name, value in msgspec.structs.asdict(cost.attention).items()}
    active_us = cost.moe.active_us * setting.ranks / setting.gpus
    changed: dict[str, Any] = {
        "ranks": setting.ranks,
        "moe": msgspec.structs.replace(cost.moe, active_us=active_us),
        "attention": type(cost.attention)(**attention),
        "rest": msgspec.structs.replace(cost.rest, fixed_us=part * cost.rest.fixed_us),
    }
    return msgspec.structs.replace(cost, **changed)


def placement_on(setting: Setting, world: World) -> Placement:
    """Where experts lie when a run begins, on each worker."""
    layers, experts = world.rates.shape[1:]
    if setting.where in ("split", "linear"):
        return Placement.linear(layers, experts, setting.ranks, setting.redundant)
    return balanced(load(world.calibration_rates, world.calibration_tokens), setting.ranks, setting.redundant)


def load(rates: npt.NDArray[Any], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Tokens that each expert gets [L, E] from requests of these rates [n, L, E] and outputs [n]."""
    return np.tensordot(tokens.astype(np.float64), rates, axes=1)
