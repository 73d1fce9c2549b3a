"""Active experts of a decode step: how many distinct experts a batch uses, mean over layers.

With expert parallelism it is those of a layer's busiest rank (eldr.sim.placement), which the others wait for.

Two ways, each a source (for all requests) that opens one batch for each worker:

- `Rates`: p[kind, layer, expert], the share of a request's decoded tokens that use an expert. Expected union,
  sum over experts of 1 - prod over requests of (1 - p): constant while the batch does not change.
- `Recorded`: the ids that a real model chose token by token. Exact union, another number each step.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError
from eldr.sim.placement import Placement, busiest

Ids = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]

MOST_STEPS = 64
"""Steps of recorded ids that are looked ahead; what an arrival interrupts is thrown away."""

_CERTAIN = 1e-12
"""The least chance to be idle, so that a logarithm exists and can be taken off again."""

_BITS = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


class Batch(Protocol):
    """The requests that decode together on one worker. A request is a number, a kind a row of the source."""

    def add(self, request: int, kind: int) -> None: ...

    def remove(self, request: int, kind: int) -> None: ...

    def active(self, steps: int) -> float | Floats:
        """Active experts of the next steps: one number if all are equal, else [n] with 1 <= n <= steps."""
        ...

    def advance(self, steps: int) -> None:
        """Decode that many tokens of each request."""
        ...

    def place(self, placement: Placement) -> None:
        """Move the experts: from the next step on."""
        ...


class ExpertUse(Protocol):
    """A source of expert choices for `kinds` kinds of requests."""

    @property
    def kinds(self) -> int: ...

    def open(self, placement: Placement | int = 1) -> Batch:
        """An empty batch. placement: of its worker's experts; a number of ranks has them in order."""
        ...


class Rates:
    """Chances p float32 [P, L, E] in [0, 1] that a token of a kind uses an expert."""

    def __init__(self, rates: npt.NDArray[np.floating[Any]]) -> None:
        """Raises ConfigError for another shape or for what is no probability."""
        if rates.ndim != 3 or not rates.size:
            raise ConfigError(f"rates are {list(rates.shape)}, expected [kinds, layers, experts]")
        if not (rates.min() >= 0 and rates.max() <= 1 + 1e-5):
            raise ConfigError(f"rates run from {rates.min():g} to {rates.max():g}, expected 0 to 1")
        self.layers, self.experts = rates.shape[1:]
        self._idle = np.log(np.maximum(1 - rates.astype(np.float32), np.float32(_CERTAIN)))

    @property
    def kinds(self) -> int:
        return len(self._idle)

    def open(self, placement: Placement | int = 1) -> "ExpectedBatch":
        return ExpectedBatch(self._idle, _placed(placement, self.layers, self.experts))


class ExpectedBatch:
    """Keeps the sum over requests of log(1 - p) [L, E]; a request that joins or leaves is one addition.

    An expert with R replicas: each is used with chance p / R.
    """

    def __init__(self, idle: npt.NDArray[np.float32], placement: Placement) -> None:
        self._idle = idle
        self._members: dict[int, int] = {}
        self._active: float | None = None
        self._chance = np.zeros(idle.shape[1:], np.float32)  # exp is five times as fast as in float64
        self.place(placement)

    def add(self, request: int, kind: int) -> None:
        self._sum += self._idle_of(kind)
        self._members[request] = kind
        self._active = None

    def remove(self, request: int, kind: int) -> None:
        del self._members[request]
        self._active = None
        if self._members:
            self._sum -= self._idle_of(kind)
        else:
            self._sum[:] = 0  # so that rounding never adds up

    def active(self, steps: int) -> float:  # noqa: ARG002
        if self._active is None:
            self._active = self._count()
        return self._active

    def advance(self, steps: int) -> None:
        """Nothing changes: the choices of a token do not depend on the tokens before."""

    def place(self, placement: Placement) -> None:
        self._placement = _placed(placement, *self._idle.shape[1:])
        self._copied = placement.replicas > 1
        self._copies = placement.replicas[self._copied].astype(np.float32)
        self._active = None
        self._sum: Floats = np.zeros(self._idle.shape[1:])
        for kind in self._members.values():
            self._sum += self._idle_of(kind)

    def _idle_of(self, kind: int) -> npt.NDArray[np.float32]:
        """log(1 - p / R) [L, E]."""
        idle: npt.NDArray[np.float32] = self._idle[kind]
        if len(self._copies):
            idle = idle.copy()
            idle[self._copied] = np.log1p(np.expm1(idle[self._copied]) / self._copies)
        return idle

    def _count(self) -> float:
        np.copyto(self._chance, self._sum, casting="same_kind")
        idle = np.exp(self._chance, out=self._chance)
        layers, experts = idle.shape
        if self._placement.ranks == 1 and not self._placement.replicated:
            return float(experts - idle.sum() / layers)
        return float(busiest(1 - self._placement.by_rank(idle)).mean())


class Recorded:
    """Ids [tokens, L, k] of each kind, one array a kind. A request longer than its record begins it again."""

    def __init__(self, ids: Sequence[Ids], experts: int) -> None:
        """Raises ConfigError for arrays of different shapes, empty ones, and ids not below `experts`."""
        if not ids or any(len(one) == 0 or one.ndim != 3 for one in ids):
            raise ConfigError("recorded ids need at least one token of each request, [tokens, layers, top_k]")
        if len({one.shape[1:] for one in ids}) > 1 or max(int(one.max()) for one in ids) >= experts:
            raise ConfigError(f"recorded ids must be of one model with {experts} experts")
        self.layers, self.experts = ids[0].shape[1], experts
        self.lengths = np.array([len(one) for one in ids])
        self._starts = self.lengths.cumsum() - self.lengths
        self._masks = np.concatenate([_masks(one, experts) for one in ids])

    @property
    def kinds(self) -> int:
        return len(self.lengths)

    def open(self, placement: Placement | int = 1) -> "RecordedBatch":
        return RecordedBatch(self, _placed(placement, self.layers, self.experts))

    def masks(self, kinds: npt.NDArray[np.intp], positions: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
        """One bit an expert, uint8 [..., L, ceil(E / 8)], of tokens of kinds."""
        masks: npt.NDArray[np.uint8] = self._masks[self._starts[kinds] + positions % self.lengths[kinds]]
        return masks


class RecordedBatch:
    """Follows each request through its recorded tokens. A request's place in the batch is its row."""

    def __init__(self, source: Recorded, placement: Placement) -> None:
        self._source, self._placement = source, placement
        self._members: dict[int, tuple[int, int]] = {}
        self._step = 0

    def add(self, request: int, kind: int) -> None:
        self._members[request] = (kind, self._step)

    def remove(self, request: int, kind: int) -> None:  # noqa: ARG002
        del self._members[request]

    def active(self, steps: int) -> Floats:
        kinds, joined = np.array(list(self._members.values()), np.intp).reshape(-1, 2).T
        coming = np.arange(min(steps, MOST_STEPS))[:, None]
        masks = self._source.masks(kinds[None, :], self._step - joined[None, :] + coming)
        if self._placement.replicated:
            counts = self._slots_used(masks).sum(axis=3)
        elif self._placement.ranks > 1:
            counts = self._placement.by_rank(self._used(np.bitwise_or.reduce(masks, axis=1))).sum(axis=3)
        else:
            counts = _BITS[np.bitwise_or.reduce(masks, axis=1)].sum(axis=2, keepdims=True)
        most: Floats = counts.max(axis=2).mean(axis=1)
        return most

    def advance(self, steps: int) -> None:
        self._step += steps

    def place(self, placement: Placement) -> None:
        self._placement = _placed(placement, self._source.layers, self._source.experts)

    def _slots_used(self, masks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """[steps, batch, L, bytes] -> [steps, L, ranks, n]: each token goes to one replica of an expert."""
        where = self._placement
        by_row = [
            where.by_rank(self._used(masks[:, row])) & where.served(row) for row in range(masks.shape[1])
        ]
        used: npt.NDArray[np.bool_] = functools.reduce(np.logical_or, by_row)
        return used

    def _used(self, masks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        return np.unpackbits(masks, axis=-1, count=self._source.experts).astype(np.bool_)


def _masks(ids: Ids, experts: int) -> npt.NDArray[np.uint8]:
    used = np.zeros((*ids.shape[:2], experts), bool)
    np.put_along_axis(used, ids.astype(np.intp), True, axis=2)
    return np.packbits(used, axis=2)


def _placed(placement: Placement | int, layers: int, experts: int) -> Placement:
    """The placement, in order over that many ranks where it is a number. ConfigError if it does not fit."""
    if isinstance(placement, int):
        return _linear(layers, experts, placement)
    if placement.shape != (layers, experts):
        raise ConfigError(
            f"the placement is for {placement.shape[0]} layers of {placement.shape[1]} experts, "
            f"the requests use {layers} of {experts}"
        )
    return placement


@functools.lru_cache(maxsize=8)
def _linear(layers: int, experts: int, ranks: int) -> Placement:
    """The same for all workers of a run."""
    return Placement.linear(layers, experts, ranks)
