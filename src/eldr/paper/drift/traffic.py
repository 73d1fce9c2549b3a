"""Requests of which other ones are asked from a moment on, and a profile of those before."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eldr.paper.beyond.cases import requests_of
from eldr.paper.beyond.worlds import SOURCES, World, world_of
from eldr.profile.kmeans import BalancedKMeans
from eldr.sim import Requests

Flags = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.str_]
Weights = npt.NDArray[np.float64]

NEW_SHARE = 1 / 3
"""Of the traffic, for a label that is new."""


@dataclass(frozen=True, slots=True)
class Load:
    """Workers, requests that each would decode together if the load were even and mixed, and when what is
    asked changes and requests end, in seconds."""

    workers: int
    batch: int
    event_s: float
    end_s: float


def traffic_of(source: str, event: str, seed: int, kept: str, load: Load) -> tuple[World, Requests]:
    """A world whose profile knows what is asked before the event, and its requests in order of arrival.

    event: "jump", one half of the labels before and the other half after, "new", one label more after, or
    "none". Both times have the rate that keeps mixed batches at load.batch. kept: see world_of.
    """
    world = world_of(source, load.workers, seed, kept)
    known, weights = mixes(world, event, seed)
    if event != "none":
        rows = np.isin(calibration_labels(source, world, seed, kept), known)
        fitted = BalancedKMeans(load.workers, seed=seed).fit(world.calibration_signatures[rows])
        world = replace(world, profile=replace(world.profile, centroids=fitted.centroids_))
    times_s = (load.event_s, load.end_s - load.event_s)
    before, after = (
        _steady(replace(world, weights=mix), load, time_s, seed + 1000 * number)
        for number, (mix, time_s) in enumerate(zip(weights, times_s, strict=True))
    )
    return world, _joined(before, after, load.event_s)


def mixes(world: World, event: str, seed: int) -> tuple[Labels, tuple[Weights, Weights]]:
    """The labels that are asked before the event, and how often each kind is asked before and after it."""
    labels = np.random.default_rng([seed, 21]).permutation(np.unique(world.served.labels))
    if event == "none":
        return labels, (world.weights, world.weights)
    if event == "jump":
        known, others = labels[: len(labels) // 2], labels[len(labels) // 2 :]
        return known, (_of(world, known), _of(world, others))
    known, new = labels[1:], labels[:1]
    before = _of(world, known)
    return known, (before, (1 - NEW_SHARE) * before + NEW_SHARE * _of(world, new))


def calibration_labels(source: str, world: World, seed: int, kept: str) -> Labels:
    """str [C]: what the calibration requests are about, found by what they used in decode."""
    traces, _ = SOURCES[source](seed, Path(kept))
    rates = np.minimum(traces.decode_rates(), 1)
    label_of = {row.tobytes(): str(label) for row, label in zip(rates, traces.label, strict=True)}
    return np.array([label_of[row.tobytes()] for row in world.calibration_rates])


def _of(world: World, labels: Labels) -> Weights:
    """The world's weights of these labels alone."""
    weights = np.where(np.isin(world.served.labels, labels), world.weights, 0.0)
    mix: Weights = weights / weights.sum()
    return mix


def _steady(world: World, load: Load, time_s: float, seed: int) -> Requests:
    """Poisson arrivals for a time."""
    few = requests_of(world, load.workers, load.batch, seed)
    rate = len(few) / float(few.arrival_s[-1])
    many = requests_of(world, load.workers, load.batch, seed, int(1.3 * rate * time_s) + 20)
    return _rows(many, many.arrival_s < time_s)


def _rows(requests: Requests, rows: Flags) -> Requests:
    return replace(requests, **{name: getattr(requests, name)[rows] for name in COLUMNS})


def _joined(before: Requests, after: Requests, event_s: float) -> Requests:
    later = replace(after, arrival_s=after.arrival_s + event_s)
    columns = {name: np.concatenate([getattr(before, name), getattr(later, name)]) for name in COLUMNS}
    return replace(before, **columns)


COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "kind", "prefix", "prefix_tokens")
