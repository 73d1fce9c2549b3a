"""The steps of a decode batch from one change of the batch to the next, and when each of them ends.

The context grows by one token a request and step, so with a constant number of active experts step n lasts
first + n x growth seconds, and the end of each is known in closed form.
"""

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from eldr.sim.cost import StepCost
from eldr.sim.experts import Batch

_SLACK_S = 1e-12
"""Rounding of a moment, so that an event at the very end of a step finds that step."""


class Segment(Protocol):
    """Steps from 1 to `steps`, known in advance."""

    steps: int

    def end_s(self, steps: int) -> float:
        """When that many steps are done."""
        ...

    def step_at(self, now_s: float) -> int:
        """The first step that ends at or after a moment within the segment, at least 1."""
        ...

    def active_sum(self, steps: int) -> float:
        """Active experts, summed over that many steps."""
        ...


class SteadySegment:
    """Any number of steps with the same active experts."""

    def __init__(self, start_s: float, first_s: float, growth_s: float, active: float, steps: int) -> None:
        self.steps = steps
        self._start_s, self._first_s, self._growth_s, self._active = start_s, first_s, growth_s, active

    def end_s(self, steps: int) -> float:
        return self._start_s + steps * (self._first_s + self._growth_s * (steps - 1) / 2)

    def step_at(self, now_s: float) -> int:
        passed_s, half = now_s - self._start_s, self._growth_s / 2
        linear = self._first_s - half
        root = 2 * passed_s / (linear + math.sqrt(linear * linear + 4 * half * passed_s))
        step = max(1, math.ceil(root))
        while step > 1 and self.end_s(step - 1) >= now_s - _SLACK_S:
            step -= 1
        while self.end_s(step) < now_s - _SLACK_S:
            step += 1
        return step

    def active_sum(self, steps: int) -> float:
        return steps * self._active


class SteppedSegment:
    """Steps with active experts of their own. ends_s, active: float64 [steps]."""

    def __init__(self, ends_s: npt.NDArray[np.float64], active: npt.NDArray[np.float64]) -> None:
        self.steps = len(ends_s)
        self._ends_s, self._active = ends_s, active

    def end_s(self, steps: int) -> float:
        return float(self._ends_s[steps - 1])

    def step_at(self, now_s: float) -> int:
        return min(self.steps, 1 + int(np.searchsorted(self._ends_s, now_s - _SLACK_S)))

    def active_sum(self, steps: int) -> float:
        return float(self._active[:steps].sum())


def plan(
    start_s: float,
    cost: StepCost,
    experts: Batch,
    batch: int,
    context: int,
    steps: int,
    slowness: float = 1.0,
) -> Segment:
    """The next steps, at most `steps`. batch: requests; context: their tokens so far, all together.

    slowness: factor on all step times.
    """
    active = experts.active(steps)
    growth_s = cost.context_s * batch * slowness
    if isinstance(active, float):
        first_s = cost.step_s(active, batch, context) * slowness
        return SteadySegment(start_s, first_s, growth_s, active, steps)
    numbers = np.arange(len(active))
    step_s = (cost.step_s(0.0, batch, context) + cost.active_s * active) * slowness + growth_s * numbers
    return SteppedSegment(start_s + step_s.cumsum(), active)
