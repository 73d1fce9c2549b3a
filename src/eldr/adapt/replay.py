"""A window's requests once more, in the simulator, under any policy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.adapt.choice import Choice
from eldr.adapt.span import Span
from eldr.adapt.window import Window
from eldr.signature.transform import SignatureTransform
from eldr.sim import ClusterSpec, Kinds, Rates, Requests, StepCost, simulate
from eldr.types import Matrix

MOST_BLOCKS, LEAST_BLOCKS = 20, 3
"""Blocks of time that differences are compared over."""

LONG_BLOCKS = 4
"""Each lasts at least a turn of the batches if there are so many; else at least half a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What is replayed: all requests of a window, of which those in the middle count.

    counted: int64 [M], rows of `requests` that are compared: decided a turn after the workers are filled, so
    that the batches are the policy's own, and early enough that few of those beside them are missing.
    counted_s: from when to when those were decided. block: int64 [M], which block of that time each was in.
    alike: how many neighbouring blocks count as one, since they share their batches.
    centroids: of the workers that have one, which come first; the others follow.
    """

    requests: Requests
    counted: npt.NDArray[np.int64]
    counted_s: tuple[float, float]
    block: npt.NDArray[np.int64]
    alike: float
    centroids: Matrix
    workers: int

    @classmethod
    def of(
        cls,
        window: Window,
        rates: npt.NDArray[np.float32],
        span: Span,
        transform: SignatureTransform,
        centroids: Matrix,
        has_centroid: npt.NDArray[np.bool_],
    ) -> "Traffic":
        """Requests come when they were decided and are as long as they were.

        Those without counts have no signature; their rates are the mean. Those whose worker has left come
        like all others.
        """
        start_s, blocks = span.start_s + span.turn_s, blocks_of(span)
        place = (window.decided_s - start_s) / (span.end_s - start_s) * blocks
        known = window.tpot_s > 0
        counted = np.flatnonzero((place >= 0) & (place < blocks) & known)
        return cls(
            requests=_requests(window, rates, transform.transform_many(window.counts)),
            counted=counted,
            counted_s=(start_s, span.end_s),
            block=place[counted].astype(np.int64),
            alike=max(1.0, blocks / (span.turns - 1)),
            centroids=centroids[has_centroid],
            workers=len(has_centroid),
        )


def blocks_of(span: Span) -> int:
    """Into how many blocks a span is cut; below LEAST_BLOCKS it is too short to compare policies."""
    turns = span.turns - 1  # the first is for the batches to become the policy's own
    return min(MOST_BLOCKS, int(turns)) if turns >= LONG_BLOCKS else int(2 * turns)


def replay(traffic: Traffic, cost: StepCost, choice: Choice, seed: int) -> npt.NDArray[np.float64]:
    """TPOT in seconds [M] of the requests that count."""
    spec = ClusterSpec(prefill=0, decode=traffic.workers)
    result = simulate(traffic.requests, spec, choice.create(seed), traffic.centroids, cost)
    tpot_s: npt.NDArray[np.float64] = result.records.tpot_s[traffic.counted]
    return tpot_s


def _requests(window: Window, rates: npt.NDArray[np.float32], signatures: Matrix) -> Requests:
    number = len(window)
    return Requests(
        arrival_s=window.decided_s - window.decided_s[0],
        prompt_tokens=window.prompt_tokens,
        output_tokens=window.output_tokens,
        kind=np.arange(number),
        prefix=np.full(number, -1),
        prefix_tokens=np.zeros(number, np.int64),
        kinds=Kinds(np.full(number, ""), Rates(rates), signatures),
    )
