"""What a decode step, a prefill and a KV transfer cost on one GPU with one model.

    step = layers x (moe.fixed + moe.active x active experts + moe.token x batch)
           + attention.fixed + attention.sequence x batch + attention.context x tokens of context
           + rest.fixed + rest.token x batch

which is linear in all that changes from step to step. Cost files: eldr.sim.costs.
"""

from functools import cached_property
from pathlib import Path

import msgspec

from eldr.errors import ConfigError

US = 1e-6


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How a part was fitted. part: "moe", ...; source: which measurements, in words.

    r2: share of the variance that the fit explains; cv_error: mean |predicted / measured - 1| of points that
    the fit had not seen; both None where the part was derived instead of fitted. points: measurements used.
    """

    part: str
    source: str
    r2: float | None = None
    cv_error: float | None = None
    points: int = 0


class Moe(msgspec.Struct, frozen=True, kw_only=True):
    """One MoE layer: a0, a1 an active expert, b a token of the batch."""

    fixed_us: float
    active_us: float
    token_us: float = 0.0


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Decode attention of all layers together. context_us: a token of context, over the whole batch."""

    fixed_us: float = 0.0
    sequence_us: float = 0.0
    context_us: float = 0.0


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything else of a step: projections, norms, embedding, head, sampling."""

    fixed_us: float = 0.0
    token_us: float = 0.0


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """One prefill step of all layers. pair_us: a pair of a new token and a token that it attends to."""

    fixed_us: float = 0.0
    token_us: float = 0.0
    pair_us: float = 0.0


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Handing a KV cache over."""

    fixed_us: float = 0.0
    token_us: float = 0.0


class StepCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The cost of steps. evidence: measured, derived, or both, in a sentence.

    ranks: expert-parallel ranks; a layer waits for the rank with the most active experts, and moe.active_us
    is for an expert of that rank. Where the experts lie: eldr.sim.placement.
    """

    name: str
    gpu: str
    model: str
    layers: int
    experts: int
    top_k: int
    moe: Moe
    ranks: int = 1
    attention: Attention = Attention()
    rest: Rest = Rest()
    prefill: Prefill = Prefill()
    transfer: Transfer = Transfer()
    evidence: str = ""
    fits: tuple[Fit, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, experts and top-k of its model."""
        return self.layers, self.experts, self.top_k

    def lent_to(self, experts: int) -> "StepCost":
        """The cost for a model of another number of experts: the same share of them takes the same time."""
        moe = msgspec.structs.replace(self.moe, active_us=self.moe.active_us * self.experts / experts)
        return msgspec.structs.replace(self, experts=experts, moe=moe)

    @cached_property
    def fixed_s(self) -> float:
        """Of a decode step, whatever the batch."""
        return (self.layers * self.moe.fixed_us + self.attention.fixed_us + self.rest.fixed_us) * US

    @cached_property
    def sequence_s(self) -> float:
        """A request of the batch."""
        token_us = self.layers * self.moe.token_us + self.rest.token_us
        return (token_us + self.attention.sequence_us) * US

    @cached_property
    def active_s(self) -> float:
        """An active expert a layer, in all layers."""
        return self.layers * self.moe.active_us * US

    @cached_property
    def context_s(self) -> float:
        """A token of context."""
        return self.attention.context_us * US

    def step_s(self, active: float, batch: int, context_tokens: float) -> float:
        """Time of a decode step. active: distinct experts (of the busiest rank), mean over layers.

        context_tokens: over the whole batch.
        """
        moe_s = self.active_s * active
        return self.fixed_s + moe_s + self.sequence_s * batch + self.context_s * context_tokens

    def prefill_s(self, tokens: int, pairs: float) -> float:
        """Time of a prefill step with `tokens` new tokens."""
        p = self.prefill
        return (p.fixed_us + p.token_us * tokens + p.pair_us * pairs) * US

    def transfer_s(self, tokens: int) -> float:
        """Time to hand the KV cache of `tokens` over."""
        return (self.transfer.fixed_us + self.transfer.token_us * tokens) * US


def load_cost(path: Path) -> StepCost:
    """Read a cost file. Raises ConfigError, naming what is wrong."""
    try:
        return checked(msgspec.json.decode(path.read_bytes(), type=StepCost))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; name a cost file, or one that comes with ELDR"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no cost file: {error}; see docs/simulator.md") from None


def checked(cost: StepCost) -> StepCost:
    """The cost itself. Raises ConfigError unless a step of it takes time and no part takes less than none."""
    parts = (cost.moe, cost.attention, cost.rest, cost.prefill, cost.transfer)
    values = {
        f"{type(p).__name__.lower()}.{k}": v for p in parts for k, v in msgspec.structs.asdict(p).items()
    }
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise ConfigError(f"cost {cost.name!r}: {name} is {value}; give a time of at least 0 us")
    if min(cost.layers, cost.experts, cost.top_k, cost.ranks) < 1:
        raise ConfigError(f"cost {cost.name!r}: layers, experts, top_k and ranks must be at least 1")
    if cost.step_s(cost.top_k, 1, 0.0) <= 0:
        raise ConfigError(
            f"cost {cost.name!r}: a decode step takes no time; give moe.fixed_us or moe.active_us"
        )
    return cost
