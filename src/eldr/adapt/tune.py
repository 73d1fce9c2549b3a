"""Which policy the replays speak for, and when that is enough to change."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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

ROUNDS = 2
"""In a row that a choice must win before it is changed to."""


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
    error: float = 0.0,
) -> tuple[Tried, ...]:
    """Judge all choices, best mean first. replays: TPOT [M] of each, among them `current`, JSQ and DEFAULT.

    block, alike: see mean_change. error: share by which the replayed mean of `current` is off the observed
    one.

    A choice wins if its mean is lower than the current one's for certain at LEVEL, by LEAST_GAIN and `error`
    unless it is the default and by TAIL_PRICE of what its tail is longer, and if that tail is not longer than
    the limit, as seen at CAUTION_LEVEL: JSQ's tail, or the default's where that is longer, so that the
    default can always be returned to. Where the current one's tail is longer than the limit for certain at
    TAIL_LEVEL, a choice also wins with a tail that is shorter than the current one's, by LEAST_GAIN and for
    certain, if its mean is not higher by as much.
    """
    judge = _Judge(replays, block, current, seed, alike, error)
    return tuple(sorted(map(judge.tried, replays), key=lambda tried: tried.mean_s))


def safest(verdicts: Sequence[tuple[Tried, ...]]) -> tuple[Tried, ...]:
    """One verdict on each choice of several, best mean first. verdicts: of each step cost that there may be.

    The default wins where one of them speaks for it; any other only where all do, so that what is not known
    of the cost can only lead to the default. A choice may be missing in those after one that it lost.
    """
    of_each: dict[Choice, list[Tried]] = {}
    for one in itertools.chain(*verdicts):
        of_each.setdefault(one.choice, []).append(one)
    found = [
        (min if choice == DEFAULT else max)(several, key=lambda one: (not one.wins, one.price))
        for choice, several in of_each.items()
    ]
    return tuple(sorted(found, key=lambda tried: tried.mean.ratio))


class _Judge:
    def __init__(
        self,
        replays: Mapping[Choice, Floats],
        block: npt.NDArray[np.int64],
        current: Choice,
        seed: int,
        alike: float,
        error: float,
    ) -> None:
        self._replays, self._block, self._current = replays, block, current
        self._seed, self._alike, self._least = seed, alike, max(LEAST_GAIN, error)
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
        needed = (0.0 if choice == DEFAULT else self._least) + TAIL_PRICE * max(longer.ratio, 0.0)
        if mean.below and -mean.ratio >= needed:
            return True, "faster"
        if self._long_tail and mean.ratio < LEAST_GAIN and longer.below and longer.ratio <= -LEAST_GAIN:
            return True, "as fast, with a shorter tail"
        return False, f"not faster by {100 * needed:.1f} %" if mean.below else "not faster for certain"

    def _tail(self, choice: Choice, other: Choice, level: float) -> Change:
        return tail_change(self._replays[choice], self._replays[other], self._block, level, self._seed)


@dataclass(frozen=True, slots=True)
class Tuner:
    """The current choice, and in how many rounds in a row others have won against it.

    returns: how often it was the default that was changed to.
    """

    current: Choice
    wins: Mapping[Choice, int] = field(default_factory=dict)
    returns: int = 0

    def after(self, tried: tuple[Tried, ...]) -> tuple["Tuner", str]:
        """The tuner after a round, and the round in words.

        tried: best mean first; empty where there was nothing to compare, which is no round: but where the
        default won before, it is then taken, since queues that grow make windows too short to compare.
        """
        if not tried and DEFAULT in self.wins:
            why = f"changed from {self.current} to {DEFAULT}: it won, and nothing compares now"
            return self._changed_to(DEFAULT), why
        if not tried:
            return self, f"kept {self.current}: nothing to compare"
        winners = [one for one in tried if one.wins]
        wins = {one.choice: self.wins.get(one.choice, 0) + 1 for one in winners}
        enough = [one for one in winners if wins[one.choice] >= self._needed(one.choice)]
        if enough:
            new = min(enough, key=lambda one: one.price)
            why = f"changed from {self.current} to {new}, {wins[new.choice]} rounds in a row"
            return self._changed_to(new.choice), why
        if winners:
            won = winners[0].choice
            rounds = f"round {wins[won]} of {self._needed(won)} in a row"
            return replace(self, wins=wins), f"kept {self.current}: {winners[0]}, {rounds}"
        other = next(one for one in tried if one.choice != self.current)
        return replace(self, wins={}), f"kept {self.current}; the best other: {other}"

    def _needed(self, choice: Choice) -> int:
        """Rounds in a row; twice as many for what is not the default each time that that was come back to."""
        return ROUNDS if choice == DEFAULT else ROUNDS << self.returns

    def _changed_to(self, choice: Choice) -> "Tuner":
        return Tuner(choice, {}, self.returns + (choice == DEFAULT))
