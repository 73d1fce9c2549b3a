"""What grouping by cluster gives off line, on recorded decode counts: the yardsticks for a live run."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from eldr.bench.steplog import Step
from eldr.profile.active import expected_active

DRAWS = 1000
"""Batches that are drawn for each mean; its standard error is then below 0.5 %."""


class OfflineGain(msgspec.Struct, frozen=True):
    """Mean active experts a step and layer: of batches drawn from all requests, and of batches from one
    cluster.

    gain: grouped / mixed - 1, negative when grouping helps.
    """

    batch: int
    clusters: int
    requests: int
    mixed: float
    grouped: float
    gain: float


def offline_gain(
    rates: npt.NDArray[np.float32], cluster: npt.NDArray[np.int64], batch: int, rng: np.random.Generator
) -> OfflineGain:
    """Compare batches of `batch` requests drawn from all with batches of one cluster, picked by its size.

    rates: [N, L, E], see `activation_rates`. cluster: [N], the nearest centroid of each request.
    """
    sizes = np.bincount(cluster)
    members = [np.flatnonzero(cluster == c) for c in range(len(sizes))]
    picks = rng.choice(len(sizes), size=DRAWS, p=sizes / sizes.sum())
    everyone = np.arange(len(rates))
    mixed = float(np.mean([_draw(rates, everyone, batch, rng) for _ in range(DRAWS)]))
    grouped = float(np.mean([_draw(rates, members[pick], batch, rng) for pick in picks]))
    return OfflineGain(batch, int((sizes > 0).sum()), len(rates), mixed, grouped, grouped / mixed - 1.0)


def mixed_by_batch(
    rates: npt.NDArray[np.float32], largest: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """[largest + 1]: mean active experts of batches of 0, 1, 2, ... requests drawn from all."""
    everyone = np.arange(len(rates))
    sizes = range(1, largest + 1)
    return np.array(
        [0.0, *(np.mean([_draw(rates, everyone, b, rng) for _ in range(DRAWS // 4)]) for b in sizes)]
    )


def against_mixed(log: Sequence[Step], mixed: npt.NDArray[np.float64]) -> float:
    """Active experts of the logged steps against random batches of the same sizes, as a ratio minus 1.

    Does not depend on how large the batches happened to be. About 0 for a policy that ignores experts.
    """
    expected = sum(float(mixed[step.batch]) for step in log)
    return sum(step.active for step in log) / expected - 1.0


def _draw(
    rates: npt.NDArray[np.float32], members: npt.NDArray[np.intp], batch: int, rng: np.random.Generator
) -> float:
    return expected_active(rates[rng.choice(members, size=batch, replace=len(members) < batch)])
