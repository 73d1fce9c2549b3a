"""What is asked of a simulated cluster: requests as columns, and the kinds that they are of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError
from eldr.profile.active import activation_rates
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet
from eldr.sim.experts import ExpertUse, Rates, Recorded
from eldr.traces import ExpertTraces
from eldr.types import Matrix, Vector

Column = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """P different requests. A run of a million requests refers to them, so memory does not grow with it.

    labels: str [P], "" where unknown. experts: their choices in decode.
    signatures: float32 [P, D], unit rows; a row of zeros has none, and None is none for all.
    """

    labels: npt.NDArray[np.str_]
    experts: ExpertUse
    signatures: Matrix | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError where the parts are not of as many requests."""
        sizes = {len(self.labels), self.experts.kinds} | (
            set() if self.signatures is None else {len(self.signatures)}
        )
        if len(sizes) != 1:
            raise ConfigError(f"labels, expert choices and signatures are of {sorted(sizes)} requests")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """N requests in order of arrival.

    arrival_s: float64 [N], from 0 and not falling. prompt_tokens, output_tokens: int64 [N], at least 1.
    kind: int64 [N], row of `kinds`. prefix: int64 [N], which shared text a prompt begins with, -1 for none;
    prefix_tokens: int64 [N], the length of that text in the prompt.
    """

    arrival_s: Times
    prompt_tokens: Column
    output_tokens: Column
    kind: Column
    prefix: Column
    prefix_tokens: Column
    kinds: Kinds

    def __post_init__(self) -> None:
        """Raise ConfigError, naming the column, for anything that is not as described above."""
        for name in ("prompt_tokens", "output_tokens", "kind", "prefix", "prefix_tokens"):
            if len(getattr(self, name)) != len(self.arrival_s):
                raise ConfigError(f"requests: {name} has not as many rows as arrival_s")
        if not len(self.arrival_s):
            raise ConfigError("there are no requests to simulate")
        if not (
            self.arrival_s[0] >= 0
            and np.isfinite(self.arrival_s[-1])
            and (np.diff(self.arrival_s) >= 0).all()
        ):
            raise ConfigError("requests: arrival_s must be from 0 and must not fall")
        if self.prompt_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise ConfigError("requests: prompt_tokens and output_tokens must be at least 1")
        if self.kind.min() < 0 or self.kind.max() >= len(self.kinds):
            raise ConfigError(f"requests: kind must be from 0 to {len(self.kinds) - 1}")
        if (self.prefix_tokens > self.prompt_tokens).any() or self.prefix_tokens.min() < 0:
            raise ConfigError("requests: prefix_tokens must be from 0 to prompt_tokens")

    def __len__(self) -> int:
        return len(self.arrival_s)


class Rows:
    """Columns as lists of numbers, of which one is read ten times as fast as of an array."""

    def __init__(self, requests: Requests) -> None:
        self.prompt: list[int] = requests.prompt_tokens.tolist()
        self.output: list[int] = requests.output_tokens.tolist()
        self.kind: list[int] = requests.kind.tolist()
        self.prefix: list[int] = requests.prefix.tolist()
        self.prefix_tokens: list[int] = requests.prefix_tokens.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class SimRequest:
    """One request by itself, for small runs and tests.

    experts: recorded ids [tokens, L, k] of its decode, or chances float [L, E]. signature: [D] or None.
    prefix: a number that says which shared text the prompt begins with, over `prefix_tokens`; None for none.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    experts: npt.NDArray[Any]
    label: str = ""
    signature: Vector | None = None
    prefix: int | None = None
    prefix_tokens: int = 0


def gather(requests: Sequence[SimRequest], num_experts: int) -> Requests:
    """The requests as columns, each a kind of its own, ordered by arrival. Raises ConfigError."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    signed = [r.signature for r in ordered if r.signature is not None]
    signatures = None
    if signed:
        nothing = np.zeros_like(signed[0])
        signatures = np.stack([nothing if r.signature is None else r.signature for r in ordered])
    ids = {r.experts.ndim == 3 for r in ordered}
    if len(ids) != 1:
        raise ConfigError("give recorded ids for all requests, or rates for all, and at least one request")
    experts = [r.experts for r in ordered]
    source: ExpertUse = Recorded(experts, num_experts) if ids.pop() else Rates(np.stack(experts))
    kinds = Kinds(np.array([r.label for r in ordered]), source, signatures)
    return Requests(
        arrival_s=np.array([r.arrival_s for r in ordered], np.float64),
        prompt_tokens=np.array([r.prompt_tokens for r in ordered]),
        output_tokens=np.array([r.output_tokens for r in ordered]),
        kind=np.arange(len(ordered)),
        prefix=np.array([-1 if r.prefix is None else r.prefix for r in ordered]),
        prefix_tokens=np.array([r.prefix_tokens for r in ordered]),
        kinds=kinds,
    )


def kinds_of(calibration: CalibrationSet, profile: Profile | None) -> Kinds:
    """Kinds from recorded requests: signatures as `profile` makes them, expert choices by decode rates."""
    rates = activation_rates(calibration.decode_counts, calibration.top_k)
    return Kinds(
        calibration.label, Rates(np.minimum(rates, 1)), _signatures(calibration.prefill_counts, profile)
    )


def kinds_of_traces(traces: ExpertTraces, profile: Profile | None, *, exact: bool = False) -> Kinds:
    """Kinds from a source of expert choices. exact: by each token's ids, which it must have, not by rates."""
    signatures = _signatures(traces.prefill, profile)
    if not exact:
        return Kinds(traces.label, Rates(traces.decode_rates()), signatures)
    if traces.ids is None:
        raise ConfigError(f"the traces of {traces.model} have no ids of each token; use their rates")
    return Kinds(traces.label, Recorded(list(traces.ids), traces.num_experts), signatures)


def _signatures(counts: npt.NDArray[Any], profile: Profile | None) -> Matrix | None:
    return None if profile is None else profile.signature_transform().transform_many(counts)
