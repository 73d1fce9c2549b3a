"""A study of a window: what a step costs, what other policies would have given, and what JSQ would have."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.adapt.batches import prompt_rates
from eldr.adapt.blocks import Floats
from eldr.adapt.choice import CANDIDATES, DEFAULT, JSQ, Choice
from eldr.adapt.costs import LEAST_REQUESTS, Learned, learn
from eldr.adapt.replay import LEAST_BLOCKS, Traffic, blocks_of, replay
from eldr.adapt.saving import Saving, saving
from eldr.adapt.span import Span
from eldr.adapt.tune import Tried, compare, safest
from eldr.adapt.window import Window
from eldr.signature.transform import SignatureTransform
from eldr.sim.cost import StepCost
from eldr.types import Matrix


@dataclass(frozen=True, slots=True)
class Study:
    """What a window says. Can be pickled.

    tried: best mean first, for Tuner.after; empty, and `saving` None, where `reason` says why. compared_s:
    from when to when, on the window's clock, the requests were decided that were compared.
    """

    requests: int
    learned: Learned | None
    tried: tuple[Tried, ...]
    saving: Saving | None
    reason: str | None
    compared_s: tuple[float, float] | None = None

    def __str__(self) -> str:
        parts = [
            str(part) for part in (self.reason, self.learned, self.saving, *self.tried) if part is not None
        ]
        return f"{self.requests} requests: {'; '.join(parts)}"


def study(
    window: Window,
    transform: SignatureTransform,
    centroids: Matrix,
    has_centroid: npt.NDArray[np.bool_],
    current: Choice,
    seed: int,
    *,
    since_s: float = -np.inf,
    candidates: Sequence[Choice] = CANDIDATES,
) -> Study:
    """Learn the cost, replay the candidates, the current choice, the default and JSQ, and compare them: under
    both ends of what the cost may be.

    centroids: [K, D], and has_centroid [K], of the decode workers of now. since_s: when the current choice
    was made, on the window's clock: what was decided before does not tell how well its replay agrees.
    Deterministic by seed.
    """
    if reason := _too_little(window, has_centroid):
        return Study(len(window), None, (), None, reason)
    rates, span = prompt_rates(window), Span.of(window)
    learned = learn(window, rates, span)
    if blocks_of(span) < LEAST_BLOCKS:
        return Study(len(window), learned, (), None, _too_short(span))
    traffic = Traffic.of(window, rates, span, transform, centroids, has_centroid)
    if (filled := len(np.unique(traffic.block))) < LEAST_BLOCKS:
        why = f"requests came in {filled} of {blocks_of(span)} blocks of time, {LEAST_BLOCKS} are needed"
        return Study(len(window), learned, (), None, why)
    observed, decided_s = (column[traffic.counted] for column in (window.tpot_s, window.decided_s))

    def replays(cost: StepCost, choices: Sequence[Choice]) -> tuple[dict[Choice, Floats], Saving]:
        tpot_s = {choice: replay(traffic, cost, choice, seed) for choice in choices}
        mine = decided_s >= since_s
        return tpot_s, saving(tpot_s[current], tpot_s[JSQ], observed, traffic.block, mine, traffic.alike)

    needed, verdicts, savings = tuple(dict.fromkeys((current, JSQ, DEFAULT))), [], {}
    choices = tuple(dict.fromkeys((*needed, *candidates)))
    for cost in dict.fromkeys(learned.ends):
        tpot_s, savings[cost] = replays(cost, choices)
        error = abs(savings[cost].mean_error or 0.0)
        tried = compare(tpot_s, traffic.block, current, seed, traffic.alike, error)
        verdicts.append(tried)
        choices = tuple(one.choice for one in tried if one.wins or one.choice in needed)
    saved = savings.get(learned.cost) or replays(learned.cost, needed)[1]
    return Study(
        len(window), learned, safest(verdicts), saved.spanning(savings.values()), None, traffic.counted_s
    )


def _too_little(window: Window, has_centroid: npt.NDArray[np.bool_]) -> str | None:
    timed = int((window.tpot_s > 0).sum())  # 0 where an answer came in one piece
    if timed < LEAST_REQUESTS:
        return f"{timed} requests with a TPOT, {LEAST_REQUESTS} are needed"
    if not window.counted.any():
        return "no request has expert counts"
    if len(has_centroid) < 2:
        return "one decode worker leaves no choice"
    return None if has_centroid.any() else "no decode worker has a centroid"


def _too_short(span: Span) -> str:
    return (
        f"the window covers {max(span.turns, 0.0):.1f} times as long as a request takes, "
        f"{1 + LEAST_BLOCKS / 2} are needed: keep more requests"
    )
