"""What a decode step costs, learned from the requests of a window.

    TPOT of a request = t0 + a x active experts + b x batch        (means over the steps that it took part in)

Active experts are those that the *prompts* of a batch foretell; what decode uses is not known. So a free fit
shares out wrongly: what the foretold number does not explain, the batch does, which goes with the true one,
and `a` comes out at as little as half. The ratio of b to a is therefore taken from a known cost, where it is
small, and t0 and a are learned, if the free fit leaves no doubt that active experts matter; else the free fit
is taken. The truth may lie anywhere from the least `a` that a free fit allows to the one of the known ratio,
so that both ends are told. How well that holds: docs/tuning.md.
"""

from dataclasses import dataclass, replace

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
"""The cost whose b / a is taken, and all of whose ratios where the window does not tell them."""

PRIOR_SPREAD, FREE_SPREAD = 1.0, 10.0
"""A term of the prior may be wrong by about this many times itself; for the fit of a free b, the second."""

LEAST_REQUESTS = 100
"""Fewer than this are not learned from."""

MOST_ERROR = 0.35
"""Where the standard error of `a` is above this share of it, the window alone does not tell it."""

LEAST_SHARE = 0.2
"""Of the `a` that goes with the prior's b / a: where a free fit may be below it, that ratio is in doubt, and
where it is for certain, ruled out."""

SURE = 2.0
"""Standard errors for certain."""

HUBER = 1.345
"""Residuals above so many standard deviations count less: stalls, preempted requests."""

ROUNDS = 8
"""Of reweighting; the last ones change nothing that shows."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A step cost and how it was learned.

    cost: linear, of the layers and experts of the window. ends: those with the least and with the most for an
    active expert that the window does not rule out. source: "window", or the name of the prior.
    requests: learned from. r2: share of the variance of TPOT that is explained; residual: median
    |TPOT / predicted - 1|; error: standard error of `a` as a share of it; None where nothing was learned.
    reason: why the prior was needed, else None.
    """

    cost: StepCost
    ends: tuple[StepCost, StepCost]
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
        least_us, most_us = (1e6 * end.active_s for end in self.ends)
        between = f"{least_us:.3g} to {most_us:.3g} us an active expert"
        return f"step {terms} ({self.source}, {self.requests} requests{fit}; {between})"


@dataclass(frozen=True, slots=True)
class _Fit:
    """t0, a and b [3] of a cost and of both ends, see Learned. error, reason: as there."""

    terms: Floats
    least: Floats
    most: Floats
    error: float | None
    reason: str | None


def learn(window: Window, rates: npt.NDArray[np.float32], span: Span) -> Learned:
    """Learn from requests that decoded within the span in which the window knows everybody.

    rates: of the prompts, see `prompt_rates`. Residuals are weighted as Huber does; those who decode together
    see the same steps, so that a batch counts as one.
    """
    seen = batches(window, rates)
    used = _used(window, seen, span)
    prior = _prior(window, seen)
    if used.sum() < LEAST_REQUESTS:
        return _learned(window, seen, used, _unfit(seen, prior, int(used.sum())))
    fit = _fit(seen, window.tpot_s, used, prior)
    seen = batches(window, rates, _cost(window, fit.terms, "window"))  # over steps: their time is known now
    return _learned(window, seen, used, _fit(seen, window.tpot_s, used, prior))


def _used(window: Window, seen: Batches, span: Span) -> npt.NDArray[np.bool_]:
    inside = (window.first_token_s >= span.start_s) & (window.finish_s <= span.end_s)
    return np.asarray(inside & (window.tpot_s > 0) & np.isfinite(seen.active), np.bool_)


def _prior(window: Window, seen: Batches) -> Floats:
    """t0, a and b with the ratios of PRIOR's terms at the mean batch, scaled to the median TPOT.

    Models with fewer experts have larger ones, but not by as much: the middle is taken between an expert that
    costs the same and a share of all of them that does.
    """
    cost = named_cost(PRIOR)
    cost = cost.lent_to(round((cost.experts * window.counts.shape[2]) ** 0.5))
    known = np.isfinite(seen.active)
    if not known.any():
        return np.array([cost.fixed_s, cost.active_s, cost.sequence_s])
    context = float((window.prompt_tokens + window.output_tokens / 2)[known].mean())
    theta = np.array([cost.fixed_s, cost.active_s, cost.sequence_s + cost.context_s * context])
    usual = theta @ [1.0, seen.active[known].mean(), seen.batch[known].mean()]
    scaled: Floats = theta * float(np.median(window.tpot_s[window.tpot_s > 0])) / usual
    return scaled


def _fit(seen: Batches, tpot_s: Floats, used: npt.NDArray[np.bool_], prior: Floats) -> _Fit:
    y, batch = tpot_s[used], seen.batch[used]
    x = np.stack([np.ones_like(y), seen.active[used], batch], axis=1) * prior  # terms as shares of the prior
    alike = 1 / np.maximum(batch, 1)
    free, free_error = _robust(x, y, alike, FREE_SPREAD)
    (fixed, active), error = _robust(np.stack([x[:, 0], x[:, 1] + x[:, 2]], axis=1), y, alike, PRIOR_SPREAD)
    low, high = max(free[1] - SURE * free_error, 0.0), free[1] + SURE * free_error
    rest = _robust(x[:, ::2], y - low * x[:, 1], alike, FREE_SPREAD)[0]
    free, tied, least = (
        np.array(terms) * prior for terms in (free, (fixed, active, active), (rest[0], low, rest[1]))
    )
    share = free_error / max(free[1] / prior[1], 1e-9)
    if high < LEAST_SHARE * active:
        return _Fit(free, least, free, share, "TPOT follows the batch, not its active experts")
    if low < LEAST_SHARE * active:
        return _Fit(free, least, tied, share, "TPOT may follow the batch, or its active experts")
    share = error / active if active > 0 else np.inf
    reason = f"active experts vary too little ({100 * share:.0f} % error)" if share > MOST_ERROR else None
    return _Fit(tied, least, tied, share, reason)


def _unfit(seen: Batches, prior: Floats, requests: int) -> _Fit:
    """The prior, and at the other end one whose active experts cost nothing, and the batch what they did."""
    known = np.isfinite(seen.active)
    experts = seen.active[known].sum() / max(seen.batch[known].sum(), 1.0)
    least = np.array([prior[0], 0.0, prior[2] + experts * prior[1]])
    why = f"{requests} requests can be learned from, {LEAST_REQUESTS} are needed"
    return _Fit(prior, least, prior, None, why)


def _robust(x: Floats, y: Floats, weight: Floats, spread: float) -> tuple[Floats, float]:
    """Least squares of y [n] on x [n, d], none negative, pulled to ones; the second term's standard error."""
    count = x.shape[1]
    terms = np.ones(count)
    for _ in range(ROUNDS):
        residual = np.abs(y - x @ terms)
        scale = max(1.4826 * float(np.median(residual)), 1e-6 * float(np.median(y)))
        root = np.sqrt(weight * np.minimum(1, HUBER * scale / np.maximum(residual, 1e-300))) / scale
        rows = np.concatenate([root[:, None] * x, np.eye(count) / spread])
        terms = nnls(rows, np.concatenate([root * y, np.ones(count) / spread]))[0]
    return terms, float(np.sqrt(np.linalg.inv(rows.T @ rows)[1, 1]))


def _learned(window: Window, seen: Batches, used: npt.NDArray[np.bool_], fit: _Fit) -> Learned:
    source = "window" if fit.reason is None else PRIOR if fit.error is None else f"window and {PRIOR}"
    cost, least, most = (_cost(window, terms, source) for terms in (fit.terms, fit.least, fit.most))
    learned = Learned(cost, (least, most), source, int(used.sum()), error=fit.error, reason=fit.reason)
    if fit.error is None:
        return learned
    y = window.tpot_s[used]
    predicted = fit.terms @ np.stack([np.ones_like(y), seen.active[used], seen.batch[used]])
    return replace(
        learned,
        r2=float(1 - ((y - predicted) ** 2).sum() / max(((y - y.mean()) ** 2).sum(), 1e-300)),
        residual=float(np.median(np.abs(y / predicted - 1))),
    )


def _cost(window: Window, terms: Floats, source: str) -> StepCost:
    layers, experts = window.counts.shape[1:]
    fixed_us, active_us, token_us = (float(value) / US for value in terms)
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
