"""Which policy the replays speak for, and when that is enough to change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eldr.adapt.blocks import Change, Floats, mean_change, tail_change
from eldr.adapt.choice import DEFAULT, JSQ, Choice

LEVEL, TAIL_LEVEL = 0.99, 0.90
"""Of the intervals of means and of 99th percentiles, for a change."""

CAUTION_LEVEL = 0.5
"""Of the interval of a 99th percentile, against a change: where it is above the limit three times in four."""

LEAST_GAIN = 0.01
"""A change that gains less is not made, however certain the gain is; only back to the default."""


TAIL_PRICE = 0.1
"""A tail that is longer than the current one's by 10 % takes a gain of 1 % away."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a replay of a choice gave.

    mean_s, p99_s: of TPOT. mean: against the current choice. tail: of the 99th percentile, against the limit.
    wins: whether it speaks for a change to this choice, and `why` or why not.
    """

    choice: Choice
    mean_s: float
    p99_s: float
    mean: Change
    tail: Change
    wins: bool
    why: str

    @property
    def price(self) -> float:
        """Of winners the one with the least is taken: its mean, and its tail at TAIL_PRICE."""
        return self.mean.ratio + TAIL_PRICE * self.tail.ratio

    def __str__(self) -> str:
        return f"{self.choice} mean {self.mean}, p99 against the limit {self.tail}: {self.why}"


def compare(
    replays: Mapping[Choice, Floats],
    block: npt.NDArray[np.int64],
    current: Choice,
    seed: int,
    alike: float = 1.0,
) -> tuple[Tried, ...]:
    """Judge all choices, best mean first. replays: TPOT [M] of each, among them `current`, JSQ and DEFAULT.

    block, alike: see mean_change.

    A choice wins if its mean is lower than the current one's for certain at LEVEL, by LEAST_GAIN unless it is
    the default and by TAIL_PRICE of what its tail is longer, and if that tail is not longer than the limit,
    as seen at CAUTION_LEVEL: JSQ's tail, or the default's where that is longer, so that the default can
    always be returned to. Where the current one's tail is longer than the limit for certain at TAIL_LEVEL, a
    choice also wins with a tail that is shorter than the current one's, by LEAST_GAIN and for certain, if its
    mean is not higher by as much.
    """
    judge = _Judge(replays, block, current, seed, alike)
    return tuple(sorted(map(judge.tried, replays), key=lambda tried: tried.mean_s))


class _Judge:
    def __init__(
        self,
        replays: Mapping[Choice, Floats],
        block: npt.NDArray[np.int64],
        current: Choice,
        seed: int,
        alike: float,
    ) -> None:
        self._replays, self._block, self._current = replays, block, current
        self._seed, self._alike = seed, alike
        self._limit = max(JSQ, DEFAULT, key=lambda choice: float(np.percentile(replays[choice], 99)))
        self._long_tail = self._tail(current, self._limit, TAIL_LEVEL).above

    def tried(self, choice: Choice) -> Tried:
        tpot_s = self._replays[choice]
        mean = mean_change(tpot_s, self._replays[self._current], self._block, LEVEL, self._alike)
        tail = self._tail(choice, self._limit, CAUTION_LEVEL)
        wins, why = self._verdict(choice, mean, tail)
        p99_s = float(np.percentile(tpot_s, 99))
        return Tried(choice, float(tpot_s.mean()), p99_s, mean, tail, wins, why)

    def _verdict(self, choice: Choice, mean: Change, tail: Change) -> tuple[bool, str]:
        if choice == self._current:
            return False, "current"
        if tail.above:
            return False, f"its tail is longer than that of {self._limit}"
        longer = self._tail(choice, self._current, TAIL_LEVEL)
        needed = (0.0 if choice == DEFAULT else LEAST_GAIN) + TAIL_PRICE * max(longer.ratio, 0.0)
        if mean.below and -mean.ratio >= needed:
            return True, "faster"
        if self._long_tail and mean.ratio < LEAST_GAIN and longer.below and longer.ratio <= -LEAST_GAIN:
            return True, "as fast, with a shorter tail"
        return False, f"not faster by {100 * needed:.1f} %" if mean.below else "not faster for certain"

    def _tail(self, choice: Choice, other: Choice, level: float) -> Change:
        return tail_change(self._replays[choice], self._replays[other], self._block, level, self._seed)


@dataclass(frozen=True, slots=True)
class Tuner:
    """The current choice, and those that won against it in the last round: a change needs two in a row."""

    current: Choice
    winners: frozenset[Choice] = frozenset()

    def after(self, tried: tuple[Tried, ...]) -> tuple["Tuner", str]:
        """The tuner after a round, and the round in words.

        tried: best mean first; empty where there was nothing to compare, which is no round: but where the
        default won before, it is then taken, since queues that grow make windows too short to compare.
        """
        if not tried and DEFAULT in self.winners:
            return Tuner(
                DEFAULT
            ), f"changed from {self.current} to {DEFAULT}: it won, and nothing compares now"
        if not tried:
            return self, f"kept {self.current}: nothing to compare"
        winners = [one for one in tried if one.wins]
        again = [one for one in winners if one.choice in self.winners]
        if again:
            new = min(again, key=lambda one: one.price)
            return Tuner(new.choice), f"changed from {self.current} to {new}, two rounds in a row"
        if winners:
            first = f"kept {self.current}: {winners[0]}, for the first time; once more is needed"
            return replace(self, winners=frozenset(one.choice for one in winners)), first
        other = next(one for one in tried if one.choice != self.current)
        return replace(self, winners=frozenset()), f"kept {self.current}; the best other: {other}"
