"""Has what is asked changed, and when? A test with a stated false-alarm rate."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.types import Matrix

FALSE_ALARMS = 1e-4
"""Share of checks that raise an alarm though nothing changed, at most."""

LEAST_ROWS = 200
"""Signatures, at least. Fewer are not tested."""

BLOCK, MOST_BLOCKS = 8, 64
"""Requests in a row that are one block, at least, and blocks, at most: then they are larger. Requests of one
block may depend on each other, as those of a user who sends some at once."""

LEAST_SIDE = 3
"""Blocks before a change and after it, at least."""

DIRECTIONS = 16
"""In which blocks differ the most; what else they differ in is noise for the most part."""

AT_ONCE, MOST_ORDERS, ENOUGH = 250, 40_000, 10
"""Random orders of the blocks, which are drawn until ENOUGH of them look as much like a change."""

SLOW = 0.95
"""Share of the requests that take no longer than a time; see `drift`."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drift:
    """p_value: chance that requests differ so much over time though nothing changed; 1 where there are too
    few. since_s: requests that were decided from then on are of the time after the change, if it was one.
    """

    p_value: float
    since_s: float

    @property
    def alarm(self) -> bool:
        return self.p_value < FALSE_ALARMS

    def __str__(self) -> str:
        return f"signatures differ from earlier ones (p = {self.p_value:.2g}, alarm below {FALSE_ALARMS:g})"


def drift(
    signatures: Matrix, decided_s: Times, finish_s: Times, after_s: float = -np.inf, seed: int = 0
) -> Drift:
    """Test signatures [N, D] of requests for a moment from which on their mean is another one.

    decided_s, finish_s: [N], of one clock. after_s: requests that ended before are left out. They are taken
    in the order in which they ended: of the last to be decided only the short ones have, and these may be on
    subjects of their own. For the same reason those are left out that ended at first, when only short ones
    could have.
    """
    took_s = finish_s - decided_s
    if len(signatures) < LEAST_ROWS:
        return Drift(1.0, -np.inf)
    steady_s = max(after_s, float(decided_s.min() + np.quantile(took_s, SLOW)))
    rows = np.argsort(finish_s, kind="stable")
    rows = rows[finish_s[rows] > steady_s]
    if len(rows) < LEAST_ROWS:
        return Drift(1.0, -np.inf)
    p_value, first = changed(signatures[rows], seed)
    return Drift(p_value, float(finish_s[rows[first]] - np.median(took_s)))


def settled(decided_s: Times, finish_s: Times, now_s: float | None = None) -> npt.NDArray[np.bool_]:
    """[N]: decided so early that nearly all of that time have ended; of later ones only the short ones have.

    now_s: None is when the last one ended. At least those of the first half of the time count.
    """
    if not len(decided_s):
        return np.zeros(0, np.bool_)
    last_s = float(finish_s.max()) if now_s is None else now_s
    slow_s = float(np.quantile(finish_s - decided_s, SLOW))
    return decided_s <= max(last_s - slow_s, float(decided_s.min() + last_s) / 2)


def changed(signatures: Matrix, seed: int = 0) -> tuple[float, int]:
    """p-value of nothing having changed in N >= LEAST_ROWS rows in order, and the row where most did.

    That is where the means of the blocks before and after differ the most (CUSUM). As much would be expected
    in any order of the blocks if nothing changed, so random orders tell the chance. It holds however requests
    of one block depend on each other, as long as blocks do not.
    """
    size = max(BLOCK, -(-len(signatures) // MOST_BLOCKS))
    skipped = len(signatures) % size
    means = signatures[skipped:].reshape(-1, size, signatures.shape[1]).mean(axis=1)
    blocks = _main_directions(means)
    found = _differences(blocks[None])[0]
    rng, higher, orders = np.random.default_rng(seed), 0, 0
    while orders < MOST_ORDERS and higher < ENOUGH:
        drawn = rng.permuted(np.tile(np.arange(len(blocks)), (AT_ONCE, 1)), axis=1)
        higher += int((_differences(blocks[drawn]).max(axis=1) >= found.max()).sum())
        orders += AT_ONCE
    return (higher + 1) / (orders + 1), skipped + size * (LEAST_SIDE + int(found.argmax()))


def _main_directions(means: Matrix) -> Matrix:
    """Centred means [B, D] of the blocks, in the directions [B, at most DIRECTIONS] in which they differ."""
    left, length, _ = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    return np.asarray((left * length)[:, :DIRECTIONS], np.float32)


def _differences(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """For orders of centred blocks [n, B, R] how much the means before and after each place differ, squared
    and over its expectation: [n, B - 2 LEAST_SIDE + 1]."""
    number = blocks.shape[1]
    before = np.arange(LEAST_SIDE, number - LEAST_SIDE + 1, dtype=np.float32)
    sums = blocks.cumsum(axis=1)[:, LEAST_SIDE - 1 : number - LEAST_SIDE]
    differences: npt.NDArray[np.float32] = np.einsum("nbr,nbr->nb", sums, sums)
    differences *= number / (before * (number - before))
    return differences
