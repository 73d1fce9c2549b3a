"""On which expert-parallel rank of a decode worker each expert lies, as vLLM's EPLB keeps it.

A layer has P = E + redundant physical experts, P / ranks in a row on each rank. An expert with R replicas is
served by one of them for each token: vLLM hashes the token's row in the batch (`replica_of`), so each gets
1 / R of the tokens.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError

Array = npt.NDArray[Any]
Index = npt.NDArray[np.intp]

KNUTH = 2654435769
"""vLLM's multiplier (floor(2^32 / phi)) of a token's row, fused_moe/router/base_router.py."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """slots: int [L, P], the expert of each physical one (EPLB's `physical_to_logical_map`), rank by rank.

    Derived. replicas: [L, E], how often each expert is there, at least once; number: [L, P], which of its
    expert's replicas a slot is, in the order of slots.
    """

    slots: Index
    ranks: int
    replicas: Index = field(init=False)
    number: Index = field(init=False)
    _flat: Index = field(init=False)

    def __post_init__(self) -> None:
        """Raise ConfigError where the slots cannot be split over the ranks, or an expert is nowhere."""
        slots = np.asarray(self.slots)
        if slots.ndim != 2 or not slots.size or slots.dtype.kind not in "iu" or slots.min() < 0:
            raise ConfigError("a placement needs the expert of each physical one, numbers [layers, slots]")
        if self.ranks < 1 or slots.shape[1] % self.ranks:
            raise ConfigError(
                f"{slots.shape[1]} physical experts cannot be split evenly over {self.ranks} ranks; "
                "add redundant ones"
            )
        counts = np.stack([np.bincount(row, minlength=slots.max() + 1) for row in slots])
        if not counts.all():
            layer, expert = np.argwhere(counts == 0)[0]
            raise ConfigError(f"placement: expert {expert} of layer {layer} has no physical one")
        layers, experts = counts.shape
        known = {
            "slots": slots.astype(np.intp),
            "replicas": counts,
            "number": np.stack([_occurrence(row) for row in slots]),
            "_flat": (np.arange(layers)[:, None] * experts + slots).ravel(),
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)

    @classmethod
    def linear(cls, layers: int, experts: int, ranks: int, redundant: int = 0) -> Self:
        """Experts in order, redundant ones behind them, as vLLM starts."""
        row = np.r_[np.arange(experts), np.arange(redundant) % experts]
        return cls(np.tile(row, (layers, 1)), ranks)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and experts."""
        layers, experts = self.replicas.shape
        return layers, experts

    @property
    def replicated(self) -> bool:
        """Has any expert more than one replica?"""
        return self.slots.size > self.replicas.size

    def by_rank(self, values: Array) -> Array:
        """[..., L, E] of experts -> [..., L, ranks, P / ranks] of their physical ones."""
        layers, experts = self.shape
        flat = values.reshape(*values.shape[:-2], layers * experts)[..., self._flat]
        return flat.reshape(*values.shape[:-2], layers, self.ranks, -1)

    def served(self, row: int) -> Array:
        """bool [L, ranks, P / ranks]: the slots that a token of the batch's row goes to for its experts."""
        layers = len(self.slots)
        turn = replica_of(row, np.take_along_axis(self.replicas, self.slots, axis=1))
        mine: Array = (self.number == turn).reshape(layers, self.ranks, -1)
        return mine


def replica_of(row: int, replicas: Index) -> Index:
    """Which of an expert's replicas vLLM gives a token, by the token's row in the batch."""
    turn: Index = (row * KNUTH & 0xFFFFFFFF) % replicas
    return turn


def busiest(chance: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Expected active experts of the busiest rank. chance: [..., ranks, n], to be active; returns [...].

    E[max N] = n - sum over x < n of prod over ranks of P(N <= x): N is the number that are active of a rank's
    n, each for itself, so its distribution is built up expert by expert. Two replicas of one expert are taken
    for independent, too.
    """
    *outer, ranks, slots = chance.shape
    if ranks == 1:
        return np.asarray(chance.sum(axis=(-1, -2)), np.float64)
    used = np.moveaxis(chance, -1, 0).reshape(slots, -1)
    of_number = np.zeros((slots + 1, used.shape[1]))
    of_number[0] = 1
    for slot in range(slots):
        one_more = of_number[: slot + 1] * used[slot]
        of_number[: slot + 1] -= one_more
        of_number[1 : slot + 2] += one_more
    at_most = of_number[:-1].cumsum(axis=0).reshape(slots, *outer, ranks)
    return np.asarray(slots - at_most.prod(axis=-1).sum(axis=0), np.float64)


def balanced(load: npt.NDArray[np.floating[Any]], ranks: int, redundant: int = 0) -> Placement:
    """Place by load [L, E] (tokens) as EPLB does within a node.

    First copies, one by one, of the expert with most load a replica; then, from the heaviest on, each to the
    rank with the least load that has a free slot. ConfigError where the slots cannot be split evenly.
    """
    experts = load.shape[1]
    if (experts + redundant) % ranks:
        raise ConfigError(
            f"{experts} experts and {redundant} redundant ones cannot be split evenly over {ranks} ranks"
        )
    return Placement(np.stack([_balanced_layer(row, ranks, redundant) for row in load]), ranks)


def _balanced_layer(load: Array, ranks: int, redundant: int) -> Index:
    replicas = np.ones(len(load), np.intp)
    slots = list(range(len(load)))
    for _ in range(redundant):
        heaviest = int((load / replicas).argmax())
        replicas[heaviest] += 1
        slots.append(heaviest)
    share = (load / replicas)[slots]
    on_rank: list[list[int]] = [[] for _ in range(ranks)]
    held = np.zeros(ranks)
    for slot in np.argsort(-share, kind="stable"):
        rank = int(held.argmin())
        on_rank[rank].append(slots[slot])
        held[rank] += share[slot]
        if len(on_rank[rank]) == len(slots) // ranks:
            held[rank] = np.inf
    return np.concatenate(on_rank).astype(np.intp)


def _occurrence(row: Index) -> Index:
    """How many equal values stand before each."""
    order = np.argsort(row, kind="stable")
    first = np.searchsorted(row[order], row[order])
    found = np.empty(len(row), np.intp)
    found[order] = np.arange(len(row)) - first
    return found
