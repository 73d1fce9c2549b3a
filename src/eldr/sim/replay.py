"""Takes the router's logged decisions again: by the same policy, to check that it decides alike, or another.

The log (eldr.metrics.decisions) has what the policy saw, so nothing is simulated here but the policy's state:
decisions are taken in their order, by one policy from the first to the last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eldr.errors import ConfigError
from eldr.metrics.decisions import DecisionRecord
from eldr.policy import Policy, create_policy, keeps_signatures, needs_profile
from eldr.types import PoolView, RoutingRequest, Vector

ROUNDING = 1.1e-5
"""The log keeps five digits of a similarity: two may be off against each other by this."""

_ONE = np.ones(1, np.float32)


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out otherwise."""

    request_id: str
    attempt: int
    logged: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found. within_rounding: same with the logged worker's similarity raised by ROUNDING."""

    policy: str
    decisions: int
    same: int
    within_rounding: int
    different: tuple[Difference, ...]


def replay_decisions(
    decisions: Iterable[DecisionRecord],
    policy: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Replay:
    """Take decisions again. policy: None for the one that the log names; options, seed: as the router had.

    A policy with a state (turns, random numbers) needs the log from the router's start. Raises ConfigError
    for a log without decisions, or of several policies where none is given, and for a policy
    that keeps signatures.
    """
    ordered = sorted(decisions, key=lambda record: (record.decided_s, record.attempt))
    names = {record.policy for record in ordered}
    if not ordered or (policy is None and len(names) > 1):
        found = f"decisions of {', '.join(sorted(names))}; name one of them" if names else "no decisions"
        raise ConfigError(f"the log has {found}")
    name = policy or ordered[0].policy
    if keeps_signatures(name):
        raise ConfigError(
            f"{name} goes by signatures, which a decision log does not hold; replay another policy"
        )
    chooser = create_policy(name, rng=np.random.default_rng(seed), **(options or {}))
    outcomes = [_again(chooser, record) for record in ordered]
    return Replay(
        policy=name,
        decisions=len(ordered),
        same=outcomes.count("same"),
        within_rounding=outcomes.count("rounding"),
        different=tuple(one for one in outcomes if isinstance(one, Difference)),
    )


def _again(policy: Policy, record: DecisionRecord) -> str | Difference:
    request, view = request_of(record), view_of(record)
    worker = policy.select(request, view).worker_id
    if worker == record.decode_worker:
        return "same"
    if view.centroids is not None and _without_state(policy):
        raised = view.centroids.copy()
        raised[record.worker_ids.index(record.decode_worker)] += ROUNDING
        if policy.select(request, replace(view, centroids=raised)).worker_id == record.decode_worker:
            return "rounding"
    return Difference(record.request_id, record.attempt, record.decode_worker, worker)


def _without_state(policy: Policy) -> bool:
    """Only such a policy can be asked twice."""
    return needs_profile(policy.name) and not keeps_signatures(policy.name)


def request_of(record: DecisionRecord) -> RoutingRequest:
    """The request as the policy knew it. Its signature is one number, see `view_of`."""
    signature: Vector | None = None if record.similarities is None else _ONE
    return RoutingRequest(record.request_id, signature, record.label, record.prompt_tokens, record.max_tokens)


def view_of(record: DecisionRecord) -> PoolView:
    """The pool as the policy saw it. Its centroids [K, 1] are the similarities, as the product will be."""
    centroids, given = None, np.zeros(len(record.worker_ids), bool)
    if record.similarities is not None:
        given = np.array([value is not None for value in record.similarities])
        centroids = np.array([[value or 0.0] for value in record.similarities], np.float32)
    return PoolView(
        worker_ids=record.worker_ids,
        in_flight=np.array(record.in_flight, np.int64),
        in_flight_tokens=np.array(record.in_flight_tokens, np.float64),
        available=np.array(record.available, bool),
        centroids=centroids,
        has_centroid=given,
    )
