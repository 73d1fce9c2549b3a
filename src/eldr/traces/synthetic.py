"""A synthetic MoE: requests of labelled domains whose expert choices have stated statistics.

The router's logits of request r in layer l and phase f (prefill or decode) are

    z = popularity + domain offset + topic offset + request offset + phase offsets

each a Gaussian of its own scale per expert: a logistic-normal model of expert popularity. A token chooses
the k experts with the largest z + Gumbel noise. Its inclusion probabilities follow without drawing a token:
Gumbel top-k are the first k of E exponential clocks of rates exp(z), so an expert is chosen with probability
1 - exp(-t exp(z)), where t is such that the layer sums to k (`inclusion`; exact as E grows).

The domain's, topic's and request's offsets are what prefill tells of decode. The phase offsets are what it
does not: one of the domain (answers of a domain read unlike its questions) and one of the request.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError
from eldr.traces.base import ExpertTraces, draw_counts

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]

CHUNK = 512
"""Requests that are made at a time: bounds the memory beside the result."""

NEWTON_STEPS = 12


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviations of the parts of a logit (nats).

    domain_phase, phase: of the offsets that prefill and decode of a domain, and of a request, have each for
    itself.
    """

    popularity: float
    domain: float
    topic: float
    request: float
    domain_phase: float
    phase: float


@dataclass(frozen=True, slots=True)
class SyntheticMoE:
    """What is made up.

    domains: name -> share of the requests. similarity: correlation matrix [D, D] of the domains' offsets,
    rows in the order of `domains`; None for independent ones. topics: equally likely ones within a domain;
    shared_topics: every domain has the same. depth: factors on all offsets but popularity, from the first
    layer to the last and interpolated between: layers differ in how much they tell.
    """

    model: str
    num_layers: int
    num_experts: int
    top_k: int
    domains: dict[str, float]
    scales: Scales
    similarity: tuple[tuple[float, ...], ...] | None = None
    topics: int = 1
    shared_topics: bool = False
    depth: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ConfigError(f"top_k = {self.top_k} of {self.num_experts} experts; give 1 to num_experts")
        if not self.domains or min(self.domains.values()) < 0 or sum(self.domains.values()) <= 0:
            raise ConfigError(f"domains = {self.domains}; give each a share of the requests above 0")
        if self.similarity is not None and np.shape(self.similarity) != (len(self.domains),) * 2:
            raise ConfigError(f"similarity is {np.shape(self.similarity)} for {len(self.domains)} domains")


class Population:
    """The parts of a synthetic MoE that its requests share: drawn once from a seed.

    layers: which layers of the model are made (ascending); None for all. base: [L, E]; factor: [L];
    domain: [D, L, E]; topic: [D, topics, L, E]; phases: [2, D, L, E], of prefill and of decode.
    """

    def __init__(self, moe: SyntheticMoE, seed: int, layers: npt.NDArray[np.int64] | None = None) -> None:
        self.moe, scales = moe, moe.scales
        self.layers = np.arange(moe.num_layers) if layers is None else layers
        rng = np.random.default_rng([seed, 0])

        def offsets(*groups: int) -> Floats:
            drawn = rng.standard_normal((*groups, moe.num_layers, moe.num_experts), np.float32)
            return drawn[..., self.layers, :]

        count = len(moe.domains)
        self.base = scales.popularity * offsets()
        self.domain = scales.domain * _correlated(moe, offsets(count))
        self.phases = scales.domain_phase * offsets(2, count)
        self.topic = scales.topic * offsets(1 if moe.shared_topics else count, moe.topics)
        places = np.linspace(0, 1, moe.num_layers)[self.layers]
        self.factor = np.interp(places, np.linspace(0, 1, len(moe.depth)), moe.depth).astype(np.float32)

    def logits(self, domain: Index, topic: Index, own: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """Logits [n, L, E] in prefill and in decode of requests of these domains and topics [n].

        own: their own offsets in both phases.
        """
        topics = self.topic[domain if len(self.topic) > 1 else 0, topic]
        shared = self.domain[domain] + topics
        before, after = (
            self.base + self.factor[:, None] * (shared + phase[domain] + offset)
            for phase, offset in zip(self.phases, own, strict=True)
        )
        return before, after


def generate(
    moe: SyntheticMoE,
    requests: int,
    *,
    prompt_tokens: npt.NDArray[np.integer[Any]] | int = 512,
    layers: npt.NDArray[np.int64] | None = None,
    seed: int = 0,
    requests_seed: int = 0,
) -> ExpertTraces:
    """Make requests of the synthetic MoE that `seed` draws; `requests_seed` draws the requests.

    prompt_tokens: [requests], or one for all. layers: make only these of the model's layers (their popularity
    and offsets are those of the whole model). Prefill counts and decode rates take two bytes an expert each.
    """
    population = Population(moe, seed, layers)
    rng = np.random.default_rng([seed, requests_seed, 1])
    shares = np.array(list(moe.domains.values()))
    domain = rng.choice(len(shares), requests, p=shares / shares.sum())
    topic = rng.integers(0, moe.topics, requests)
    tokens = np.broadcast_to(np.asarray(prompt_tokens, np.int32), requests)
    shape = (requests, len(population.layers), moe.num_experts)
    prefill = np.empty(shape, np.uint16 if tokens.max(initial=0) < 2**16 else np.uint32)
    rates = np.empty(shape, np.float16)
    for start in range(0, requests, CHUNK):
        part = slice(start, start + CHUNK)
        own = _own_offsets(moe.scales, prefill[part].shape, rng)
        before, after = population.logits(domain[part], topic[part], own)
        prefill[part] = draw_counts(inclusion(before, moe.top_k), tokens[part], moe.top_k, rng)
        rates[part] = inclusion(after, moe.top_k)
    return ExpertTraces(
        model=moe.model,
        source=f"a synthetic MoE in the shape of {moe.model} (docs/synthetic.md)",
        evidence="model",
        top_k=moe.top_k,
        num_layers=moe.num_layers,
        layers=population.layers,
        label=np.array(list(moe.domains))[domain],
        prompt_tokens=tokens.copy(),
        prefill=prefill,
        rates=rates,
    )


def inclusion(logits: npt.NDArray[np.floating[Any]], top_k: int) -> Floats:
    """The probability [..., E] that a token with these logits [..., E] has each expert among its top k.

    1 - exp(-t w) with w = exp(logits), and t by Newton's method such that a row sums to top_k, within 0.1 %.
    The sum is concave in t and the start k / sum(w) lies below the root, so the steps approach it from below.
    """
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True)).astype(np.float32)
    if top_k == weights.shape[-1]:
        return np.ones_like(weights)
    t = top_k / weights.sum(axis=-1, keepdims=True)
    for _ in range(NEWTON_STEPS):
        idle = np.exp(-t * weights)
        missing = top_k - weights.shape[-1] + idle.sum(axis=-1, keepdims=True)
        if missing.max() < 1e-3 * top_k:
            break
        idle *= weights
        t += missing / idle.sum(axis=-1, keepdims=True)
    chosen: Floats = 1 - np.exp(-t * weights)
    return chosen


def _own_offsets(scales: Scales, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Request and phase offsets [n, L, E] of prefill and of decode: their covariance is request^2, their
    variance request^2 + phase^2. a u + b v and a u - b v need two draws an expert, not three.
    """
    common, apart = (rng.standard_normal(shape, np.float32) for _ in range(2))
    common *= np.float32(np.sqrt(scales.request**2 + scales.phase**2 / 2))
    apart *= np.float32(np.sqrt(scales.phase**2 / 2))
    return common + apart, common - apart


def _correlated(moe: SyntheticMoE, independent: Floats) -> Floats:
    """Offsets [D, L, E] of the domains, with their correlation."""
    if moe.similarity is None:
        return independent
    values, vectors = np.linalg.eigh(np.array(moe.similarity))
    if values.min() < -1e-6:
        raise ConfigError("similarity is no correlation matrix: it has a negative eigenvalue")
    root = vectors * np.sqrt(np.maximum(values, 0))
    return np.tensordot(root.astype(np.float32), independent, axes=1)
