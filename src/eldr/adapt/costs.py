"""What a decode step costs, learned from the requests of a window.

    TPOT of a request = t0 + a x active experts + b x batch        (means over the steps that it took part in)

Active experts are those that the *prompts* of a batch foretell. So `a` holds also how far prompts foretell
decode, which is what a replay of prompts needs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from eldr.adapt.batches import Batches, batches
from eldr.adapt.span import Span
from eldr.adapt.window import Window
from eldr.sim.cost import US, Moe, Rest, StepCost
from eldr.sim.costs import named_cost

Floats = npt.NDArray[np.float64]

PRIOR = "h200-qwen3-30b-a3b"
"""The cost whose ratio of terms is taken where the window does not tell."""

PRIOR_SPREAD = 1.0
"""A term of the prior may be wrong by about this share of itself."""

LEAST_REQUESTS = 100
"""Fewer than this are not learned from."""

MOST_ERROR = 0.35
"""Where the standard error of `a` is above this share of it, the window alone does not tell it."""

HUBER = 1.345
"""Residuals above so many standard deviations count less: stalls, preempted requests."""

ROUNDS = 8
"""Of reweighting; the last ones change nothing that shows."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A step cost and how it was learned.

    cost: linear, of the layers and experts of the window. source: "window", or the name of the prior.
    requests: learned from. r2: share of the variance of TPOT that is explained; residual: median
    |TPOT / predicted - 1|; error: standard error of `a` as a share of it; None where nothing was learned.
    reason: why the prior was needed, else None.
    """

    cost: StepCost
    source: str
    requests: int
    r2: float | None = None
    residual: float | None = None
    error: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        cost = self.cost
        terms = (
            f"{1e3 * cost.fixed_s:.3g} ms + {1e6 * cost.active_s:.3g} us x active experts "
            f"+ {1e6 * cost.sequence_s:.3g} us x batch"
        )
        fit = "" if self.r2 is None else f", R2 {self.r2:.2f}, residual {100 * (self.residual or 0):.1f} %"
        return f"step {terms} ({self.source}, {self.requests} requests{fit})"


def learn(window: Window, rates: npt.NDArray[np.float32], span: Span) -> Learned:
    """Learn from requests that decoded within the span in which the window knows everybody.

    rates: of the prompts, see `prompt_rates`. Residuals are weighted as Huber does; those who decode together
    see the same steps, so that a batch counts as one. A prior, wide as PRIOR_SPREAD says, settles what the
    window leaves open, such as how to share out a cost between batch and active experts that go together.
    """
    seen = batches(window, rates)
    used = _used(window, seen, span)
    prior = _prior(window, seen)
    if used.sum() < LEAST_REQUESTS:
        why = f"{int(used.sum())} requests can be learned from, {LEAST_REQUESTS} are needed"
        return Learned(_cost(window, prior, PRIOR), PRIOR, int(used.sum()), reason=why)
    theta, error = prior, np.inf
    for _ in range(2):
        theta, error = _fit(seen, window.tpot_s, used, prior)
        seen = batches(window, rates, _cost(window, theta, "window"))
    return _learned(window, seen, used, theta, error)


def _used(window: Window, seen: Batches, span: Span) -> npt.NDArray[np.bool_]:
    inside = (window.first_token_s >= span.start_s) & (window.finish_s <= span.end_s)
    return np.asarray(inside & (window.tpot_s > 0) & np.isfinite(seen.active), np.bool_)


def _prior(window: Window, seen: Batches) -> Floats:
    """t0, a and b with the ratios of PRIOR's terms at the mean batch, scaled to the median TPOT."""
    cost = named_cost(PRIOR).lent_to(window.counts.shape[2])
    known = np.isfinite(seen.active)
    if not known.any():
        return np.array([cost.fixed_s, cost.active_s, cost.sequence_s])
    context = float((window.prompt_tokens + window.output_tokens / 2)[known].mean())
    theta = np.array([cost.fixed_s, cost.active_s, cost.sequence_s + cost.context_s * context])
    usual = theta @ [1.0, seen.active[known].mean(), seen.batch[known].mean()]
    scaled: Floats = theta * float(np.nanmedian(window.tpot_s)) / usual
    return scaled


def _fit(seen: Batches, tpot_s: Floats, used: npt.NDArray[np.bool_], prior: Floats) -> tuple[Floats, float]:
    """The three terms, none negative, and the standard error of `a` as a share of it."""
    y, batch = tpot_s[used], seen.batch[used]
    x = np.stack([np.ones_like(y), seen.active[used], batch], axis=1) * prior  # terms as shares of the prior
    alike, theta = 1 / np.maximum(batch, 1), np.ones(3)
    for _ in range(ROUNDS):
        residual = y - x @ theta
        scale = max(1.4826 * float(np.median(np.abs(residual))), 1e-6 * float(np.median(y)))
        weight = alike * np.minimum(1, HUBER * scale / np.maximum(np.abs(residual), 1e-300))
        rows = np.concatenate([np.sqrt(weight)[:, None] * x / scale, np.eye(3) / PRIOR_SPREAD])
        theta = nnls(rows, np.concatenate([np.sqrt(weight) * y / scale, np.ones(3) / PRIOR_SPREAD]))[0]
    deviation = float(np.sqrt(np.linalg.inv(rows.T @ rows)[1, 1]))
    return theta * prior, deviation / theta[1] if theta[1] > 0 else np.inf


def _learned(
    window: Window, seen: Batches, used: npt.NDArray[np.bool_], theta: Floats, error: float
) -> Learned:
    y = window.tpot_s[used]
    predicted = theta @ np.stack([np.ones_like(y), seen.active[used], seen.batch[used]])
    reason = None
    if error > MOST_ERROR:
        reason = f"active experts vary too little apart from the batch ({100 * error:.0f} % error of a)"
    source = "window" if reason is None else f"window and {PRIOR}"
    return Learned(
        _cost(window, theta, source),
        source,
        len(y),
        r2=float(1 - ((y - predicted) ** 2).sum() / max(((y - y.mean()) ** 2).sum(), 1e-300)),
        residual=float(np.median(np.abs(y / predicted - 1))),
        error=error,
        reason=reason,
    )


def _cost(window: Window, theta: Floats, source: str) -> StepCost:
    layers, experts = window.counts.shape[1:]
    fixed_us, active_us, token_us = (float(value) / US for value in theta)
    return StepCost(
        name="learned",
        gpu="as observed",
        model="as observed",
        layers=layers,
        experts=experts,
        top_k=window.top_k,
        moe=Moe(fixed_us=0.0, active_us=active_us / layers),
        rest=Rest(fixed_us=fixed_us, token_us=token_us),
        evidence=source,
    )
