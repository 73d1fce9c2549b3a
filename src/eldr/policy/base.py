"""The contract of a policy, and what policies share."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from eldr.errors import NoWorkerError
from eldr.registry import Registry
from eldr.types import Decision, PoolView, RoutingRequest

Indices = npt.NDArray[np.intp]


class Policy(Protocol):
    """Chooses the decode worker of a request.

    A policy is a pure function of the request, the view and its own state (a turn, a random generator): no
    I/O, no clock, no knowledge of its host. It changes neither argument. Its constructor takes the generator
    and then its parameters as keywords, and raises ConfigError for a bad one.
    """

    name: str

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        """Return an available worker; raises NoWorkerError when there is none."""
        ...


@runtime_checkable
class NamesWorkers(Protocol):
    """A policy whose parameters name workers: which ones, so that its host can say if one is not there."""

    @property
    def named_workers(self) -> frozenset[str]: ...


POLICIES: Registry[Callable[..., Policy]] = Registry("policy")


def needs_profile(name: str) -> bool:
    """Whether the policy of this name compares requests with centroids: its class has `needs_profile`."""
    return getattr(POLICIES[name], "needs_profile", False)


def keeps_signatures(name: str) -> bool:
    """Whether the policy of this name goes by signatures of earlier requests, which no decision log has."""
    return getattr(POLICIES[name], "keeps_signatures", False)


def available_workers(pool: PoolView) -> Indices:
    """Return the indices of the available workers, in order and at least one; raises NoWorkerError."""
    workers = pool.available.nonzero()[0]
    if not len(workers):
        raise NoWorkerError(
            f"none of {len(pool.worker_ids)} decode workers is available; start one, or look at their /health"
        )
    return workers


def decide(
    policy: str,
    pool: PoolView,
    worker: int,
    *,
    band_size: int,
    similarity: float | None = None,
    best_similarity: float | None = None,
    fallback: str | None = None,
    similarities: npt.NDArray[np.float64] | None = None,
) -> Decision:
    """Return the decision for the worker at an index of the pool."""
    return Decision(
        worker=int(worker),
        worker_id=pool.worker_ids[worker],
        policy=policy,
        in_flight=int(pool.in_flight[worker]),
        band_size=band_size,
        similarity=similarity,
        best_similarity=best_similarity,
        fallback=fallback,
        similarities=similarities,
    )


def join_shortest_queue(
    policy: str, pool: PoolView, workers: Indices, fallback: str | None = None
) -> Decision:
    """Choose the worker with the fewest requests in flight out of `workers`; the first of equals."""
    worker = int(workers[pool.in_flight[workers].argmin()])
    return decide(policy, pool, worker, band_size=len(workers), fallback=fallback)


def no_similarity(request: RoutingRequest, pool: PoolView) -> str | None:
    """Why similarities cannot be compared, as a `fallback`, or None when they can."""
    if pool.centroids is None:
        return "no_profile"
    if request.signature is None:
        return "no_signature"
    if pool.centroids.shape[1] != len(request.signature):
        return "other_profile"
    if not (pool.available & pool.has_centroid).any():
        return "no_centroid"
    return None
