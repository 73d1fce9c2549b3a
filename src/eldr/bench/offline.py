"""What grouping by cluster gives off line, on recorded decode counts: the yardsticks for a live run."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from eldr.bench.steplog import Step
from eldr.errors import CalibrationError
from eldr.profile.active import LEAST, Group, Rates, compare_grouping


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


def offline_gain(rates: Rates, cluster: npt.NDArray[np.int64], batch: int) -> OfflineGain:
    """Compare batches of `batch` requests drawn from all with batches of one cluster, picked by its size.

    rates: [N, L, E], see `activation_rates`. cluster: [N], the nearest centroid of each request.
    CalibrationError where every cluster has too few requests to say anything.
    """
    found = compare_grouping(rates, cluster, (batch,))[0]
    if found.mixed is None or found.by_cluster is None or found.change is None:
        raise CalibrationError(f"no cluster has {LEAST} of the {len(rates)} requests; serve more of them")
    clusters = len(np.unique(cluster))
    return OfflineGain(batch, clusters, len(rates), found.mixed, found.by_cluster, found.change)


def mixed_by_batch(rates: Rates, largest: int) -> npt.NDArray[np.float64]:
    """[largest + 1]: mean active experts of batches of 0, 1, 2, ... requests drawn from all."""
    everyone = Group(rates)
    return np.array([everyone.active(batch) for batch in range(largest + 1)])


def against_mixed(log: Sequence[Step], mixed: npt.NDArray[np.float64]) -> float:
    """Active experts of the logged steps against random batches of the same sizes, as a ratio minus 1.

    Does not depend on how large the batches happened to be. About 0 for a policy that ignores experts.
    """
    expected = sum(float(mixed[step.batch]) for step in log)
    return sum(step.active for step in log) / expected - 1.0
