"""One simulation, from requests to records."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from eldr.errors import ConfigError
from eldr.policy import Policy, create_policy, options_by_profile
from eldr.profile.artifact import Profile
from eldr.sim.cluster import Cluster
from eldr.sim.cost import StepCost
from eldr.sim.records import SimResult
from eldr.sim.requests import Requests
from eldr.sim.spec import ClusterSpec
from eldr.types import Matrix


def simulate(
    requests: Requests,
    cluster: ClusterSpec,
    policy: str | Policy,
    profile: Profile | Matrix | None,
    cost: StepCost,
    seed: int = 0,
    *,
    options: Mapping[str, Any] | None = None,
    in_flight: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> SimResult:
    """Serve the requests on a simulated cluster. Deterministic by seed.

    policy: a name with its `options`, or a policy, which must be fresh: it may have a state. One with a tau
    takes the profile's, as in the router, unless an option says otherwise.
    profile: its centroids go to the decode workers in order; the centroids alone will do.
    in_flight: so many requests at once, the next as one ends, instead of the arrival times.
    advance: called for each request that has ended.
    Raises ConfigError for parameters that do not fit each other.
    """
    if isinstance(policy, str):
        given = dict(options or {})
        if isinstance(profile, Profile):
            given = options_by_profile(policy, given, profile.info.tau)
        policy = create_policy(policy, rng=np.random.default_rng(seed), **given)
    centroids = profile.centroids if isinstance(profile, Profile) else profile
    _check(requests, cluster, centroids, in_flight)
    return Cluster(requests, cluster, policy, centroids, cost).run(in_flight, advance)


def _check(requests: Requests, cluster: ClusterSpec, centroids: Matrix | None, in_flight: int | None) -> None:
    largest = int((requests.prompt_tokens + requests.output_tokens).max())
    if cluster.kv_tokens is not None and largest > cluster.kv_tokens:
        raise ConfigError(
            f"a request has {largest} tokens, a decode worker room for {cluster.kv_tokens}; give it more"
        )
    if in_flight is not None and in_flight < 1:
        raise ConfigError(f"{in_flight} requests in flight; at least 1 is needed")
    signatures = requests.kinds.signatures
    if centroids is not None and signatures is not None and centroids.shape[1] != signatures.shape[1]:
        raise ConfigError(
            f"signatures have {signatures.shape[1]} components and the centroids {centroids.shape[1]}; "
            "make both with one profile"
        )
