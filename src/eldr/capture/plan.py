"""What travels between the scheduler and the workers each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

StepKind = Literal["decode", "mixed", "prefill"]

StepArrays = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.integer]]
"""Of one pipeline stage and step: header [L + 1], prompt counts [finals, L, E], decode ids [traced, L, k]."""


class Final(NamedTuple):
    """A request whose prompt completes in this step: its blocks hold the counts of the whole prompt."""

    request_id: str
    blocks: list[int]


class Traced(NamedTuple):
    """Decode tokens of one traced request in this step, by the KV slots that they are written to."""

    request_id: str
    first_position: int
    slots: list[int]


@dataclass
class StepPlan:
    """Scheduler -> workers, attached to the inner connector's metadata.

    Attributes:
        kind: "decode" if every request computes one token (drafts aside), "prefill" if every one computes
            more, else "mixed". The last prompt token, which a decode worker computes again after a hand-off,
            is one token like any other.
        requests: number of requests in the batch.
        fresh: blocks whose earlier counts are void from this step on.
        uncounted: slots whose rows are not to be counted (speculative tokens may be rejected and written
            again).
    """

    kind: StepKind = "decode"
    requests: int = 0
    fresh: list[int] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    traced: list[Traced] = field(default_factory=list)
    uncounted: list[int] = field(default_factory=list)


@dataclass
class StepReport:
    """Workers -> scheduler: one step as arrays on the host.

    Attributes:
        plan: the plan that this step carried out.
        layers: global indices of the L MoE layers.
        active: int32 [L], distinct experts a layer; zeros in a step of kind "prefill".
        unseen: choices that no hook wrote (0 unless capture is broken).
        prompt_counts: int32 [len(plan.finals), L, E].
        decode_ids: integer [traced tokens, L, k], in the order of `plan.traced`.
    """

    plan: StepPlan
    layers: tuple[int, ...]
    active: NDArray[np.int32]
    unseen: int
    prompt_counts: NDArray[np.int32]
    decode_ids: NDArray[np.integer]


@dataclass
class PendingReport:
    """A step of one pipeline stage, whose arrays may still be on their way from the device.

    `fetch` gives (header int32 [L + 1]: active experts and then unseen choices, prompt_counts, decode_ids),
    waiting for the copy only if it has not ended. Pickling fetches: in vLLM's multi-process executor that
    happens on the thread that sends the output, after the forward pass, so the forward itself never waits.
    """

    plan: StepPlan
    layers: tuple[int, ...]
    fetch: Callable[[], StepArrays]

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (self.plan, self.layers, self.fetch())


def _arrived(
    plan: StepPlan,
    layers: tuple[int, ...],
    arrays: StepArrays,
) -> PendingReport:
    return PendingReport(plan, layers, lambda: arrays)


def merge(parts: list[PendingReport]) -> StepReport:
    """One report from the pipeline stages', layers in global order."""
    ordered = sorted(parts, key=lambda part: part.layers)
    headers, counts, ids = zip(*(part.fetch() for part in ordered), strict=True)
    return StepReport(
        plan=ordered[0].plan,
        layers=tuple(layer for part in ordered for layer in part.layers),
        active=np.concatenate([header[:-1] for header in headers]),
        unseen=int(sum(header[-1] for header in headers)),
        prompt_counts=np.concatenate(counts, axis=1),
        decode_ids=np.concatenate(ids, axis=1),
    )
