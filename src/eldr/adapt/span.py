"""From when to when a window knows everybody who was there."""

from dataclasses import dataclass

import numpy as np

from eldr.adapt.window import Window

MISSING = 0.05
"""Share of the requests in flight that may be unknown at the end of a span."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds of the window's clock.

    start_s: the first end of a request: a window keeps the last to end, so who was there then is in it.
    end_s: later, more than MISSING of those in flight had not ended yet, and are not in the window.
    turn_s: mean time from decision to end, over which a worker's batch is replaced.
    """

    start_s: float
    end_s: float
    turn_s: float

    @property
    def turns(self) -> float:
        """How often batches were replaced in it; not above 0 where there is no such span."""
        return (self.end_s - self.start_s) / self.turn_s

    @classmethod
    def of(cls, window: Window) -> "Span":
        """The span of a window of at least one request.

        How long requests take is read off those decided in the first half, since of the last only the short
        ones have ended. With D that time, those in flight c seconds before the end are missing by the share
        E[(D - c)+] / E[D], for steady arrivals.
        """
        last_s = float(window.finish_s.max())
        early = window.decided_s <= np.median(window.decided_s)
        took_s = np.sort(window.finish_s[early] - window.decided_s[early])
        left = took_s[::-1].cumsum()[::-1] - took_s * np.arange(len(took_s), 0, -1)
        cut_s = took_s[np.argmax(left <= MISSING * took_s.sum())]
        return cls(float(window.finish_s.min()), last_s - float(cut_s), max(float(took_s.mean()), 1e-9))
