"""From the flags of `eldr simulate` to what is simulated."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eldr.config import parse_option
from eldr.errors import ConfigError
from eldr.metrics.records import read_records
from eldr.policy import options_by_profile
from eldr.profile.artifact import Profile
from eldr.sim import (
    Change,
    ClusterSpec,
    Requests,
    StepCost,
    cost_names,
    gamma_arrivals,
    load_cost,
    lognormal_lengths,
    make_requests,
    mixed_kinds,
    named_cost,
    replayed_requests,
    shared_prefixes,
)
from eldr.sim.requests import Column
from eldr.sim.scenario import Scenario, from_calibration, from_source

SPREAD = 0.6
"""Of the logarithm of lengths that are drawn."""

DEFAULT_POLICIES = ("round_robin", "random", "jsq", "p2c", "locality_band", "soft_locality")
PREFIX_TEXTS = 8
"""Different shared beginnings of each label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The flags, by their names; see `eldr simulate --help`. fails, joins: (worker's number, seconds)."""

    cost: str
    source: str
    workload: str
    calibration: Path | None
    profile: Path | None
    exact: bool
    prefill: int
    decode: int
    policies: tuple[str, ...]
    options: tuple[str, ...]
    requests: int
    rate: float
    cv: float
    arrivals: Path | None
    in_flight: int | None
    mix: tuple[tuple[str, float], ...]
    prompt_tokens: int | None
    output_tokens: int | None
    max_batch: int
    kv_tokens: int | None
    prefix_blocks: int
    prefix_share: float
    prefix_tokens: int
    fails: tuple[tuple[str, float], ...]
    joins: tuple[tuple[str, float], ...]
    seeds: int
    seed: int

    def policy_options(self) -> dict[str, dict[str, Any]]:
        """Policy -> options. ConfigError for options that several policies would share."""
        names = self.policies or DEFAULT_POLICIES
        if self.options and len(names) != 1:
            raise ConfigError("--option belongs to one policy; name it with --policy")
        return {name: dict(parse_option(option) for option in self.options) for name in names}

    def log_options(self, policy: str) -> dict[str, Any]:
        """Options to take logged decisions with: as given, and the profile's tau as the router would."""
        given = dict(parse_option(option) for option in self.options)
        if self.profile is None:
            return given
        return options_by_profile(policy, given, Profile.load(self.profile).info.tau)

    def step_cost(self) -> StepCost:
        """A cost that comes with ELDR, or that of a file."""
        path = Path(self.cost)
        if path.suffix == ".json" or path.is_file():
            return load_cost(path)
        if self.cost not in cost_names():
            raise ConfigError(f"--cost {self.cost}: no such file, and none of {', '.join(cost_names())}")
        return named_cost(self.cost)

    def cluster(self) -> ClusterSpec:
        fails = [Change(at_s, _worker(name), "fail") for name, at_s in self.fails]
        joins = [Change(at_s, _worker(name), "join") for name, at_s in self.joins]
        return ClusterSpec(
            prefill=self.prefill,
            decode=self.decode,
            max_batch=self.max_batch,
            kv_tokens=self.kv_tokens,
            prefix_blocks=self.prefix_blocks,
            changes=(*fails, *joins),
        )

    def scenario(self, cost: StepCost) -> Scenario:
        """Load or make the requests, and load or fit the profile."""
        if self.calibration is not None:
            if self.exact:
                raise ConfigError("--exact needs the experts of each token, which a calibration set has not")
            return from_calibration(self.calibration, self.decode, self.profile, self.seed)
        return from_source(
            self.source, cost.model, self.workload, self.decode, self.profile, self.seed, exact=self.exact
        )

    def maker(self, scenario: Scenario) -> Callable[[int], Requests]:
        """A function that makes the requests of a seed."""
        if self.arrivals is not None:
            records = list(read_records(self.arrivals))
            return lambda seed: replayed_requests(records, scenario.kinds, np.random.default_rng(seed))
        return lambda seed: self._drawn(scenario, np.random.default_rng(seed))

    def _drawn(self, scenario: Scenario, rng: np.random.Generator) -> Requests:
        kinds, count = scenario.kinds, self.requests
        kind = mixed_kinds(kinds, count, rng, dict(self.mix) or None)
        prompt = self._lengths(self.prompt_tokens, scenario.prompt_tokens, 512, kind, rng)
        output = self._lengths(self.output_tokens, scenario.output_tokens, 256, kind, rng)
        prefix = shared_prefixes(kind, kinds, self.prefix_share, PREFIX_TEXTS, rng)
        return make_requests(
            kinds,
            gamma_arrivals(count, self.rate, self.cv, rng),
            kind,
            prompt + np.where(prefix >= 0, self.prefix_tokens, 0),
            output,
            prefix=prefix,
            prefix_tokens=np.where(prefix >= 0, self.prefix_tokens, 0),
        )

    def _lengths(
        self, median: int | None, recorded: Column | None, usual: int, kind: Column, rng: np.random.Generator
    ) -> Column:
        if median is None and recorded is not None:
            return recorded[kind]
        return lognormal_lengths(len(kind), median or usual, SPREAD, rng)


def _worker(name: str) -> int:
    """The number of a decode worker, given as 3 or d3."""
    number = name.removeprefix("d")
    if not number.isdecimal():
        raise ConfigError(f"{name!r} is no decode worker; give its number, like 3@60")
    return int(number)
