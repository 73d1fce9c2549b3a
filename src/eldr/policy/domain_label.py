"""Static routing by domain: the client names the domain, a table names its workers."""

from collections.abc import Mapping, Sequence

import numpy as np

from eldr.errors import ConfigError
from eldr.policy.base import POLICIES, available_workers, join_shortest_queue
from eldr.types import Decision, PoolView, RoutingRequest


@POLICIES.register("domain_label")
class DomainLabel:
    """Takes the least loaded of the workers that serve the request's label.

    workers: label -> ids of its workers. Where the request has no label ("no_label"), the table lacks it
    ("unknown_label"), or none of its workers is available ("no_labelled_worker"), all workers are taken.
    """

    name = "domain_label"

    def __init__(self, rng: np.random.Generator, *, workers: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        self._workers = _checked(workers)

    @property
    def named_workers(self) -> frozenset[str]:
        """All workers of the table."""
        return frozenset[str]().union(*self._workers.values())

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        available = available_workers(pool)
        if request.label is None:
            return join_shortest_queue(self.name, pool, available, "no_label")
        if request.label not in self._workers:
            return join_shortest_queue(self.name, pool, available, "unknown_label")
        ids = self._workers[request.label]
        labelled = np.array([k for k in available if pool.worker_ids[k] in ids], np.intp)
        if not len(labelled):
            return join_shortest_queue(self.name, pool, available, "no_labelled_worker")
        return join_shortest_queue(self.name, pool, labelled)


def _checked(workers: object) -> dict[str, frozenset[str]]:
    if not isinstance(workers, Mapping) or not workers:
        raise ConfigError(f"domain_label: 'workers' is {workers!r}, expected label -> list of worker ids")
    for label, ids in workers.items():
        if not isinstance(label, str):  # YAML reads no, on and 1 as something else
            raise ConfigError(f"domain_label: the label {label!r} is no text; put it in quotes")
        if not isinstance(ids, list | tuple) or not ids or not all(isinstance(i, str) for i in ids):
            raise ConfigError(
                f"domain_label: workers of {label!r} are {ids!r}, expected a list of worker ids"
            )
    return {label: frozenset(ids) for label, ids in workers.items()}
