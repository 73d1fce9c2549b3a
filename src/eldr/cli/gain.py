"""Is routing by locality worth it? From expected active experts to time per output token, on a named GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from eldr.errors import ConfigError
from eldr.profile.active import ActiveExperts
from eldr.profile.artifact import ProfileInfo
from eldr.sim.cost import StepCost
from eldr.sim.costs import cost_names, named_cost

WORTH = -0.02
"""A TPOT change from here on is worth a router; it has to pay for the spread that balancing load costs."""

SATURATED = 0.95
"""Where batches use this share of the experts anyway, no grouping can save many."""


@dataclass(frozen=True, slots=True)
class StepGain:
    """Predicted time of a decode step, which is TPOT while the batch lasts. moe_share: of the mixed step,
    what reading experts takes.
    """

    batch: int
    mixed_ms: float
    grouped_ms: float
    moe_share: float

    @property
    def change(self) -> float:
        return self.grouped_ms / self.mixed_ms - 1


@dataclass(frozen=True, slots=True)
class Hardware:
    """A step cost. own: of the profile's model, else lent to it."""

    cost: StepCost
    own: bool


def gpu_costs(name: str) -> dict[str, StepCost]:
    """The costs on a GPU, named like "h200", or the cost of that full name. ConfigError for none."""
    found = {cost: named_cost(cost) for cost in cost_names() if cost == name or cost.startswith(f"{name}-")}
    if not found:
        raise ConfigError(f"no step cost for --gpu {name!r}; choose from {', '.join(_gpus())}")
    return found


def find_hardware(name: str, info: ProfileInfo) -> Hardware:
    """Find the cost of the profile's model on a GPU, named like "h200", or a cost by its full name.

    A model without a cost of its own borrows that of Qwen3-30B-A3B, with the same share of experts active.
    ConfigError for an unknown name.
    """
    known = gpu_costs(name)
    for cost in known.values():
        if cost.shape == (info.layers, info.experts, info.top_k):
            return Hardware(cost, own=True)
    borrowed = next((c for n, c in known.items() if n.endswith("qwen3-30b-a3b")), next(iter(known.values())))
    return Hardware(borrowed.lent_to(info.experts), own=False)


def step_gains(
    hardware: Hardware, active: Sequence[ActiveExperts], context_tokens: float
) -> tuple[StepGain, ...]:
    """Predict decode steps, mixed and grouped, for batches whose requests have `context_tokens` each."""
    gains = []
    for row in active:
        if row.mixed is None or row.by_cluster is None:
            continue
        context = row.batch * context_tokens
        experts = (row.mixed, row.by_cluster)
        mixed_s, grouped_s = (hardware.cost.step_s(active, row.batch, context) for active in experts)
        moe_share = hardware.cost.active_s * row.mixed / mixed_s
        gains.append(StepGain(row.batch, mixed_s * 1e3, grouped_s * 1e3, moe_share))
    return tuple(gains)


def verdict(gains: Sequence[StepGain], active: Sequence[ActiveExperts], experts: int) -> str:
    """Say in a sentence or two whether it is worth it, and why."""
    best = min(gains, key=lambda gain: gain.change)
    row = next(row for row in active if row.batch == best.batch)
    assert row.mixed is not None
    assert row.change is not None
    reads = (
        f"batches of one cluster read {-row.change:.1%} fewer experts than mixed ones, "
        f"and reading experts is {best.moe_share:.0%} of a step"
    )
    if best.change <= WORTH:
        spread = f"{max(gain.change for gain in gains):+.1%} to {best.change:+.1%}"
        return f"Worth it: TPOT {spread} over these batches; at batch {best.batch}, {reads}."
    if row.change > WORTH:
        why = (
            f"even a mixed batch uses {row.mixed / experts:.0%} of the experts"
            if row.mixed >= SATURATED * experts
            else "the clusters hardly differ in the experts that they decode with"
        )
        return f"Not worth it: TPOT {best.change:+.1%} at best (batch {best.batch}); {why}."
    return f"Not worth it: TPOT {best.change:+.1%} at best (batch {best.batch}), although {reads}."


def _gpus() -> list[str]:
    return sorted({name.split("-qwen3")[0] for name in cost_names() if "-qwen3" in name})
