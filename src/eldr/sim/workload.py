"""Makes requests: when they come, of which kind they are, how long they are, what prompts share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError
from eldr.metrics.records import RequestRecord
from eldr.sim.requests import Column, Kinds, Requests, Times

Ints = npt.NDArray[np.integer[Any]]


def poisson_arrivals(count: int, rate: float, rng: np.random.Generator) -> Times:
    """Moments [count] of a Poisson process with `rate` requests a second."""
    return gamma_arrivals(count, rate, 1.0, rng)


def gamma_arrivals(count: int, rate: float, cv: float, rng: np.random.Generator) -> Times:
    """Moments whose gaps have the coefficient of variation `cv`: 1 is Poisson, more is bursty, 0 regular."""
    if not 0 < rate < float("inf") or not 0 <= cv < float("inf"):
        raise ConfigError(f"rate {rate} and variation {cv}: give requests a second above 0, and cv from 0")
    if cv == 0:
        return np.arange(1, count + 1) / rate
    shape = cv**-2
    return rng.gamma(shape, 1 / (rate * shape), count).cumsum()


def modulated_arrivals(count: int, rates: Sequence[float], mean_s: float, rng: np.random.Generator) -> Times:
    """Moments of a Poisson process that takes its `rates` in turn, each for exponential times of `mean_s`."""
    if not mean_s > 0 or not any(rate > 0 for rate in rates) or min(rates) < 0:
        raise ConfigError(f"rates {list(rates)} for {mean_s} s each: give times and a rate above 0")
    parts, start_s, made, turn = [], 0.0, 0, 0
    while made < count:
        length_s = rng.exponential(mean_s)
        number = rng.poisson(rates[turn % len(rates)] * length_s)
        parts.append(start_s + np.sort(rng.uniform(0, length_s, number)))
        start_s, made, turn = start_s + length_s, made + number, turn + 1
    return np.concatenate(parts)[:count]


def mixed_kinds(
    kinds: Kinds, count: int, rng: np.random.Generator, shares: Mapping[str, float] | None = None
) -> Column:
    """Rows of `kinds` [count]. shares: label -> share of the requests, which are made to sum to 1.

    None takes every kind as often. Raises ConfigError for a label that no kind has.
    """
    if shares is None:
        return rng.integers(0, len(kinds), count)
    missing = [label for label in shares if not (kinds.labels == label).any()]
    if missing or not sum(shares.values()) > 0 or min(shares.values()) < 0:
        raise ConfigError(f"shares {dict(shares)}: of {sorted(set(kinds.labels.tolist()))}, at least 0 each")
    chance = np.zeros(len(kinds))
    for label, share in shares.items():
        own = kinds.labels == label
        chance[own] = share / own.sum()
    return rng.choice(len(kinds), count, p=chance / chance.sum())


def lognormal_lengths(
    count: int, median: float, sigma: float, rng: np.random.Generator, most: int = 1 << 20
) -> Column:
    """Lengths in tokens [count], at least 1. sigma: of the logarithm; 0 makes all equal."""
    drawn = np.exp(rng.normal(np.log(median), sigma, count))
    return np.clip(np.round(drawn), 1, most).astype(np.int64)


def make_requests(
    kinds: Kinds,
    arrival_s: Times,
    kind: Ints,
    prompt_tokens: Ints | int,
    output_tokens: Ints | int,
    *,
    prefix: Ints | None = None,
    prefix_tokens: Ints | int = 0,
) -> Requests:
    """Put columns together. A length that is one number is that of all; `prefix` None is no shared text."""
    count = len(arrival_s)

    def column(values: Ints | int) -> Column:
        return np.broadcast_to(np.asarray(values, np.int64), count)

    return Requests(
        arrival_s=arrival_s,
        prompt_tokens=column(prompt_tokens),
        output_tokens=column(output_tokens),
        kind=column(kind),
        prefix=column(-1 if prefix is None else prefix),
        prefix_tokens=column(0 if prefix is None else prefix_tokens),
        kinds=kinds,
    )


def replayed_requests(
    records: Iterable[RequestRecord], kinds: Kinds, rng: np.random.Generator, speed: float = 1.0
) -> Requests:
    """Requests that come as recorded ones did and are as long, each of a kind of its label if there is one.

    speed: 2 lets them come twice as fast. Only answers of known length count; ConfigError without any.
    """
    known = [r for r in records if r.outcome == "ok" and r.prompt_tokens and r.output_tokens]
    if not known or not 0 < speed < float("inf"):
        raise ConfigError(f"{len(known)} whole answers at {speed} times their speed; give a file of records")
    known.sort(key=lambda record: record.arrival_s)
    arrival_s = (np.array([r.arrival_s for r in known]) - known[0].arrival_s) / speed
    rows = {label: np.flatnonzero(kinds.labels == label) for label in {r.label for r in known}}
    everyone = np.arange(len(kinds))
    own = [rows[r.label] if len(rows[r.label]) else everyone for r in known]
    return make_requests(
        kinds,
        arrival_s,
        np.array([rng.choice(choices) for choices in own]),
        np.array([r.prompt_tokens for r in known]),
        np.array([r.output_tokens for r in known]),
    )


def shared_prefixes(kind: Ints, kinds: Kinds, share: float, texts: int, rng: np.random.Generator) -> Column:
    """The shared text [n] of each prompt, -1 for none: `share` of them begin with one of `texts` a label."""
    if not 0 <= share <= 1 or texts < 1:
        raise ConfigError(
            f"share {share} of {texts} shared texts: give a share from 0 to 1 and at least 1 text"
        )
    _, label = np.unique(kinds.labels, return_inverse=True)
    text = label[kind] * texts + rng.integers(0, texts, len(kind))
    return np.where(rng.random(len(kind)) < share, text, -1)
