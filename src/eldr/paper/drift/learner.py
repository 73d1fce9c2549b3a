"""The router's learning in a simulated cluster: what it keeps, when it looks, and centroids that change."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eldr.adapt.round import Answer, first_profile, refitted
from eldr.adapt.seats import Seats
from eldr.adapt.window import Sampler, Seen, Window
from eldr.metrics.records import RequestRecord
from eldr.paper.beyond.worlds import World
from eldr.policy import Policy
from eldr.profile.artifact import Profile
from eldr.settings_adapt import AdaptConfig
from eldr.sim import Records
from eldr.sim.cluster import Cluster
from eldr.sim.events import CHANGE
from eldr.sim.products import Centroids
from eldr.types import Decision, Matrix, PoolView, RoutingRequest

KEPT = 1024
"""Requests that stand for the whole window of time: half of the router's, for less of a study's time."""

EVERY_S, WINDOW_S = AdaptConfig().interval_s, AdaptConfig().window_s
"""Between two looks, and how far back what is kept goes: the router's defaults."""

TAU = 0.1
"""Of a first profile; policies here do not read it."""


class Reseated:
    """A policy that sees centroids of its own in place of the pool's: row i is worker i's; None: nobody's."""

    def __init__(self, policy: Policy, centroids: Matrix | None) -> None:
        self.name, self._policy = policy.name, policy
        self.use(centroids)

    def use(self, centroids: Matrix | None) -> None:
        """Show these from the next decision on."""
        self._centroids = None if centroids is None else centroids.view(Centroids)

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        if self._centroids is not None:
            everybody = np.ones(len(self._centroids), np.bool_)
            pool = replace(pool, centroids=self._centroids, has_centroid=everybody)
        return self._policy.select(request, pool)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found. kept: requests that it saw. p_value: of the test for drift, None where there was
    too little; alarm: was it one. first: a first profile. moved: share of the kept requests whose centroid is
    another worker's now, None where centroids stay; gain: see eldr.adapt.refit.Refit."""

    at_s: float
    kept: int
    p_value: float | None
    alarm: bool
    first: bool
    moved: float | None
    gain: float | None


class Learner:
    """Looks at what a cluster served, as eldr.adapt.live does; what it finds is in use at once.

    profile: what the router begins with; None for a cold start. looks: what was found so far.
    """

    def __init__(
        self, world: World, profile: Profile | None, policy: Reseated, cluster: Cluster, seed: int
    ) -> None:
        self._world, self._profile, self._policy, self._seed = world, profile, policy, seed
        self._cluster, self._taken = cluster, np.zeros(len(cluster.records), np.bool_)
        self._counts = np.minimum(world.prefill, np.iinfo(np.uint16).max).astype(np.uint16)
        self._sample, self._since_s = Sampler(KEPT, WINDOW_S), -np.inf
        self._workers = tuple(f"d{worker}" for worker in range(len(world.profile.centroids)))
        self.looks: list[Look] = []

    def plan(self, until_s: float) -> None:
        """Look every EVERY_S before a time."""
        for at_s in np.arange(EVERY_S, until_s, EVERY_S):
            self._cluster.loop.at(float(at_s), CHANGE, self.look)

    def look(self) -> None:
        """See what has ended, and do what is found."""
        now_s = self._cluster.loop.now_s
        self._take(self._cluster.records)
        seen, shape = self._sample.seen(), self._counts.shape
        window = Window.of(seen, self._workers, shape[1:], self._world.profile.info.top_k)
        cold = self._profile is None
        found = self._answer(window)
        self.looks.append(_told(found, now_s, len(seen), cold))
        self._use(found, now_s)

    def _answer(self, window: Window) -> Answer:
        profile, seed = self._profile, self._seed + len(self.looks)
        if profile is None:
            return first_profile(window, self._world.profile.info.model, TAU, seed)
        everybody = np.ones(len(self._workers), np.bool_)
        seats = Seats(self._workers, profile.centroids, everybody, profile.centroids[:0])
        return refitted(window, seats, profile, self._since_s, seed)

    def _use(self, found: Answer, now_s: float) -> None:
        if found.drift is not None and found.drift.alarm:
            self._since_s = now_s
        if found.stale_s is not None:
            self._sample.forget(found.stale_s)
        if found.profile is not None:
            self._profile = found.profile
            self._policy.use(found.profile.centroids)

    def _take(self, records: Records) -> None:
        """Keep the requests that have ended since the last look, as they ended."""
        ended = np.flatnonzero(np.isfinite(records.finish_s) & ~self._taken)
        self._taken[ended] = True
        for row in ended[np.argsort(records.finish_s[ended], kind="stable")].tolist():
            self._sample.add(Seen(_record(records, row), self._counts[records.requests.kind[row]]))


def _record(records: Records, row: int) -> RequestRecord:
    """What learning reads of a request."""
    facts: dict[str, Any] = {
        name: float(getattr(records, name)[row])
        for name in ("arrival_s", "decided_s", "first_token_s", "finish_s")
    }
    requests = records.requests
    return RequestRecord(
        request_id=str(row),
        path="/v1/completions",
        started_at=facts["arrival_s"],
        prompt_tokens=int(requests.prompt_tokens[row]),
        output_tokens=int(requests.output_tokens[row]),
        decode_worker=f"d{records.decode_worker[row]}",
        outcome="ok",
        **facts,
    )


def _told(found: Answer, at_s: float, kept: int, cold: bool) -> Look:
    used = None if found.profile is None else found.refit
    return Look(
        at_s=at_s,
        kept=kept,
        p_value=None if found.drift is None else found.drift.p_value,
        alarm=found.drift is not None and found.drift.alarm,
        first=cold and used is not None,
        moved=None if used is None or cold else used.moved,
        gain=None if used is None else used.gain,
    )
