"""How often the test for drift raises an alarm though nothing changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.adapt.drift import changed
from eldr.paper.beyond.worlds import World, world_of

CHECKS, ROWS = 600, 1000
"""Checks without drift, and requests of each."""

RUN = 5
"""Requests that a user sends in a row, where users send alike ones."""

LEVELS = (0.05, 0.01, 0.001, 0.0001)
"""p-values below which checks are counted; the last is an alarm."""

Kinds = npt.NDArray[np.int64]


def false_alarms(*, source: str, users: str, workers: int, kept: str) -> dict[str, Any]:
    """Checks of requests that are drawn from the source's in the same way all the time.

    below: share of the checks with a p-value below each of LEVELS.
    """
    world, rng = world_of(source, workers, 0, kept), np.random.default_rng(31)
    values = np.array([_p_value(world, USERS[users](world, rng), seed) for seed in range(CHECKS)])
    return {"below": [float((values < level).mean()) for level in LEVELS]}


def _p_value(world: World, kinds: Kinds, seed: int) -> float:
    signatures = world.served.signatures
    assert signatures is not None
    return changed(signatures[kinds], seed)[0]


def _independent(world: World, rng: np.random.Generator) -> Kinds:
    return rng.choice(len(world.weights), ROWS, p=world.weights)


def _same_label(world: World, rng: np.random.Generator) -> Kinds:
    """A user's requests are drawn from those of one label."""
    labels, drawn = world.served.labels, rng.choice(len(world.weights), ROWS // RUN, p=world.weights)
    own = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    return np.concatenate([rng.choice(own[labels[kind]], RUN) for kind in drawn])


def _same_request(world: World, rng: np.random.Generator) -> Kinds:
    """A user's requests are one prompt over and over."""
    return np.repeat(rng.choice(len(world.weights), ROWS // RUN, p=world.weights), RUN)


USERS: dict[str, Callable[[World, np.random.Generator], Kinds]] = {
    "independent": _independent,
    f"{RUN} in a row on one subject": _same_label,
    f"{RUN} in a row of one prompt": _same_request,
}
"""How requests depend on each other."""
