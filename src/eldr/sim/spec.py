"""What a simulated cluster consists of, and what happens to it."""

from dataclasses import dataclass
from typing import Literal

from eldr.errors import ConfigError
from eldr.sim.cost import StepCost
from eldr.sim.placement import Placement


@dataclass(frozen=True, slots=True)
class Change:
    """A decode worker fails (all that it holds is lost) or joins (again) at a moment."""

    at_s: float
    worker: int
    event: Literal["fail", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Workers and their limits.

    prefill: workers; 0 leaves prefill out, and requests are decided when they arrive. decode: workers.
    max_batch, kv_tokens: of a decode worker, see DecodeWorker. prefill_batch_tokens: of a prefill step.
    prefix_blocks: of each prefill worker's cache, of block_tokens each; 0 for none.
    slowness: factor on the step times of each decode worker, for pools of unlike ones; none: 1 for all.
    changes: decode workers that fail and join; one whose first change is a join is away until then.
    placements: where the experts of each decode worker lie at first; none: in order over the cost's ranks.
    """

    prefill: int = 1
    decode: int = 2
    max_batch: int = 256
    kv_tokens: int | None = None
    prefill_batch_tokens: int = 8192
    prefix_blocks: int = 0
    block_tokens: int = 16
    slowness: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()
    placements: tuple[Placement, ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that makes no sense."""
        least = {"prefill": 0, "decode": 1, "max_batch": 1, "prefix_blocks": 0, "block_tokens": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ConfigError(f"cluster: {name} is {getattr(self, name)}, expected at least {value}")
        if self.slowness and (len(self.slowness) != self.decode or min(self.slowness) <= 0):
            raise ConfigError(f"cluster: slowness is {self.slowness}, expected {self.decode} factors above 0")
        if self.placements and len(self.placements) != self.decode:
            raise ConfigError(f"cluster: {len(self.placements)} placements for {self.decode} decode workers")
        for change in self.changes:
            if not 0 <= change.worker < self.decode or not change.at_s >= 0:
                raise ConfigError(
                    f"cluster: decode worker {change.worker} at {change.at_s} s; there are {self.decode}"
                )


def on_ranks(placement: Placement, cost: StepCost) -> Placement:
    """The placement itself. ConfigError where it has other ranks than the cost is for."""
    if placement.ranks != cost.ranks:
        raise ConfigError(
            f"a placement on {placement.ranks} ranks, and the cost {cost.name!r} is for {cost.ranks}; "
            "use one for as many"
        )
    return placement
