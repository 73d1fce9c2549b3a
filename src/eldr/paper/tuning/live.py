"""A simulated router that runs for a while: what its window holds, and a policy that can be changed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.adapt.choice import Choice
from eldr.adapt.window import Window
from eldr.paper.beyond.worlds import World
from eldr.sim import ClusterSpec, Records, Requests
from eldr.sim.cluster import Cluster
from eldr.types import Decision, PoolView, RoutingRequest

Floats = npt.NDArray[np.float64]


class Switchable:
    """The policy of a choice, which can be another one from now on, as in the router."""

    name = "switchable"

    def __init__(self, choice: Choice, seed: int) -> None:
        self._seed = seed
        self.switch(choice)

    def switch(self, choice: Choice) -> None:
        """Take another policy, which starts fresh."""
        self.choice, self._policy = choice, choice.create(self._seed)

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        return self._policy.select(request, pool)


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A running cluster. noise: factors [N] on the times from first token to end, as clients see them."""

    world: World
    workers: int
    cluster: Cluster
    policy: Switchable
    noise: Floats

    @property
    def records(self) -> Records:
        return self.cluster.records

    def window(self, capacity: int) -> Window:
        """What the router would have kept: the last `capacity` requests that have ended."""
        records = self.records
        ended = np.flatnonzero(np.isfinite(records.finish_s))
        ended = ended[np.argsort(records.finish_s[ended], kind="stable")[-capacity:]]
        return window_of(records, ended, self.world, self.workers, self.noise)


def window_of(
    records: Records, rows: npt.NDArray[np.intp], world: World, workers: int, noise: Floats
) -> Window:
    """A window of some requests of a simulation, with the counts of their prompts. noise: see Live."""
    rows = rows[np.argsort(records.decided_s[rows], kind="stable")]
    requests = records.requests
    first_s = records.first_token_s[rows]
    counts = np.minimum(world.prefill[requests.kind[rows]], np.iinfo(np.uint16).max)
    return Window(
        worker_ids=tuple(f"d{k}" for k in range(workers)),
        worker=records.decode_worker[rows].astype(np.int64),
        decided_s=records.decided_s[rows],
        first_token_s=first_s,
        finish_s=first_s + (records.finish_s[rows] - first_s) * noise[rows],
        prompt_tokens=requests.prompt_tokens[rows],
        output_tokens=requests.output_tokens[rows],
        counts=counts.astype(np.uint16),
        top_k=world.profile.info.top_k,
    )


def run(
    world: World,
    requests: Requests,
    workers: int,
    choice: Choice,
    look: Callable[["Live", float], None] | None = None,
    every_s: float = np.inf,
    noise: float = 0.0,
) -> Live:
    """Serve the requests. look: called every_s with the time; may read the window and change the policy.

    noise: spread of the logarithm of the factors on the times that clients see.
    """
    policy = Switchable(choice, seed=0)
    spec = ClusterSpec(prefill=max(2, workers // 2), decode=workers)
    cluster = Cluster(requests, spec, policy, world.profile.centroids, world.cost)
    factors = np.random.default_rng(0).lognormal(-(noise**2) / 2, noise, len(requests))
    live = Live(world, workers, cluster, policy, factors)
    due_s = every_s

    def ended() -> None:
        nonlocal due_s
        if look is not None and (now_s := live.cluster.loop.now_s) >= due_s:
            due_s = now_s + every_s
            look(live, now_s)

    live.cluster.run(None, ended)
    return live
