"""What JSQ would have given on the same traffic."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eldr.adapt.blocks import Floats, mean_change

LEVEL = 0.95

MODEL_ERROR = 0.35
"""Half of the 95 % interval of the true saving over the estimated one, where traffic has no noise: how far a
prompt foretells decode, and what else the replay does not know. From the suite of docs/tuning.md."""


@dataclass(frozen=True, slots=True)
class Saving:
    """`eldr_estimated_tpot_saving_ratio` and what it stands on.

    ratio: 1 - mean TPOT of the current policy / mean TPOT of JSQ, both replayed. low, high: its 95 %
    interval, of the traffic's noise over blocks of time and of MODEL_ERROR together; where the window does
    not tell the cost, of all costs that it may be. jsq_s: mean TPOT of JSQ.
    mean_error: by what share the replayed mean TPOT of the current policy is above the one that was really
    observed, of the same requests; None where none of them ran under it.
    """

    ratio: float
    low: float
    high: float
    jsq_s: float
    mean_error: float | None

    def spanning(self, others: Iterable["Saving"]) -> "Saving":
        """With an interval that holds those of others."""
        all_ = (self, *others)
        return replace(self, low=min(one.low for one in all_), high=max(one.high for one in all_))

    def __str__(self) -> str:
        agrees = "" if self.mean_error is None else f"; replayed TPOT is {100 * self.mean_error:+.1f} % off"
        return (
            f"saves {100 * self.ratio:.1f} % of jsq's TPOT ({100 * self.low:.1f} to {100 * self.high:.1f})"
            f"{agrees}"
        )


def saving(
    current: Floats,
    jsq: Floats,
    observed: Floats,
    block: npt.NDArray[np.int64],
    under_current: npt.NDArray[np.bool_],
    alike: float = 1.0,
) -> Saving:
    """All [M], of the same requests in the same order. under_current: those decided by the current policy.

    block, alike: see mean_change.
    """
    change = mean_change(current, jsq, block, LEVEL, alike)
    half = float(np.hypot(change.high - change.ratio, MODEL_ERROR * change.ratio))
    error = None
    if under_current.any():
        error = float(current[under_current].mean() / observed[under_current].mean()) - 1
    return Saving(-change.ratio, -change.ratio - half, -change.ratio + half, float(jsq.mean()), error)
