"""The batches that live decode workers had, put together again from requests' times, and their experts.

Free of how fast this machine happened to be: whoever decoded together is taken from the run, and only the
experts are the simulator's.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eldr.bench.load import Reply
from eldr.bench.results import PolicyRun
from eldr.bench.steplog import Step
from eldr.sim.experts import ExpertUse

Floats = npt.NDArray[np.float64]

LAGS_S = np.linspace(0.0, 0.4, 81)
"""How much later than the engine a client may see a token: the one that explains most batch sizes."""


def live_batches(run: PolicyRun, rows: Sequence[int], experts: ExpertUse) -> tuple[Floats, float]:
    """Counted and expected active experts [steps, 2] of steps whose batch is known, and their share of steps.

    rows: the kind of each planned request, as `experts` numbers them.
    """
    pairs, total = [], 0
    for worker in run.steps:
        steps = [step for step in run.log if step.worker == worker]
        own = [reply for reply in run.replies if reply.record.decode_worker == worker]
        pairs += _pairs(steps, own, rows, experts)
        total += len(steps)
    return np.array(pairs).reshape(-1, 2), len(pairs) / max(1, total)


def _pairs(
    steps: list[Step], replies: list[Reply], rows: Sequence[int], experts: ExpertUse
) -> list[tuple[float, float]]:
    seen_s, first_s, finish_s = _times(steps, replies)
    batch, members, pairs = experts.open(1), set[int](), []
    for step, now_s in zip(steps, seen_s, strict=True):
        there = set(np.flatnonzero((first_s <= now_s) & (now_s <= finish_s)).tolist())
        for request in members - there:
            batch.remove(request, rows[replies[request].index])
        for request in there - members:
            batch.add(request, rows[replies[request].index])
        members = there
        if len(members) == step.batch:
            pairs.append((step.active, float(np.mean(batch.active(1)))))
    return pairs


def busy_steps(run: PolicyRun, worker: str) -> tuple[list[Step], npt.NDArray[np.bool_]]:
    """A worker's steps in order, and which of them followed the one before at once: a request was in both."""
    steps = sorted((step for step in run.log if step.worker == worker), key=lambda step: step.at_s)
    own = [reply for reply in run.replies if reply.record.decode_worker == worker]
    seen_s, first_s, finish_s = _times(steps, own)
    both = (first_s[None, :] <= seen_s[:-1, None]) & (finish_s[None, :] >= seen_s[1:, None])
    return steps, np.append(False, both.any(axis=1))


def _times(steps: Sequence[Step], replies: Sequence[Reply]) -> tuple[Floats, Floats, Floats]:
    """When a client saw each step, and each request's first and last token."""
    at_s, sizes = np.array([s.at_s for s in steps]), np.array([s.batch for s in steps])
    first_s = np.array([r.record.first_token_s for r in replies], np.float64)
    finish_s = np.array([r.record.finish_s for r in replies])
    lag_s = max(LAGS_S, key=lambda lag: int((_sizes(at_s + lag, first_s, finish_s) == sizes).sum()))
    return at_s + lag_s, first_s, finish_s


def _sizes(now_s: Floats, first_s: Floats, finish_s: Floats) -> npt.NDArray[np.int64]:
    begun = np.searchsorted(np.sort(first_s), now_s, side="right")
    ended = np.searchsorted(np.sort(finish_s), now_s, side="left")
    return begun - ended
