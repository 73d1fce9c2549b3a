"""The paper's policy: of the workers whose experts are nearly the nearest, the least loaded."""

import numpy as np

from eldr.errors import ConfigError
from eldr.policy.base import POLICIES, available_workers, decide, join_shortest_queue, no_similarity
from eldr.types import Decision, PoolView, RoutingRequest


@POLICIES.register("locality_band")
class LocalityBand:
    """Takes the least loaded worker of the band: those with similarity >= s* - tau.

    s* is the best cosine similarity of the signature to a centroid of an available worker. Equal loads go
    by similarity, then by worker order. A worker without a centroid is always in the band, so that a new one
    gets work at once. tau: band width, from 0 (nearest only) to 2 (load only).

    Goes by load alone, and says so in `fallback`, where the request has no signature ("no_signature") or one
    of another profile ("other_profile"), where there is no profile ("no_profile"), and where no available
    worker has a centroid ("no_centroid").
    """

    name = "locality_band"
    needs_profile = True

    def __init__(self, rng: np.random.Generator, *, tau: float = 0.1) -> None:  # noqa: ARG002
        if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 <= tau <= 2:
            raise ConfigError(f"locality_band: 'tau' is {tau!r}, expected a number from 0 to 2")
        self._tau = float(tau)

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        workers = available_workers(pool)
        if reason := no_similarity(request, pool):
            return join_shortest_queue(self.name, pool, workers, reason)
        assert request.signature is not None
        assert pool.centroids is not None
        similarity = (pool.centroids @ request.signature).astype(np.float64)
        similarity[~pool.has_centroid] = -np.inf
        cosines = similarity[workers]
        best = float(cosines.max())
        band = workers[(cosines >= best - self._tau) | ~pool.has_centroid[workers]]
        load = pool.in_flight[band]
        least = band[load == load.min()]
        worker = int(least[similarity[least].argmax()])
        return decide(
            self.name,
            pool,
            worker,
            band_size=len(band),
            similarity=float(similarity[worker]) if pool.has_centroid[worker] else None,
            best_similarity=best,
            similarities=similarity,
        )
