"""Synthetic requests with gate probabilities, which the transformations of Fig. 14 need beside the counts.

The synthetic router gives a token the logits z + Gumbel noise; its gate probabilities are their softmax.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.traces import ExpertTraces
from eldr.traces.base import draw_counts
from eldr.traces.synthetic import Population, SyntheticMoE, inclusion

TOKENS = 32
"""Tokens of a prompt whose probabilities are added up; the sum stands for all of its tokens."""

CHUNK = 64
"""Requests at a time: bounds the memory."""

LEAST = np.float32(1e-9)
"""An exponential number in single precision can be 0, which nothing may be divided by."""

Floats = npt.NDArray[np.float32]


def generate_with_gates(
    moe: SyntheticMoE, prompt_tokens: npt.NDArray[np.int64], layers: npt.NDArray[np.int64], seed: int
) -> tuple[ExpertTraces, Floats]:
    """Requests as `eldr.traces.synthetic.generate` makes them, and gate sums [N, L, E] of their prompts."""
    population = Population(moe, seed, layers)
    rng = np.random.default_rng([seed, 3])
    shares = np.array(list(moe.domains.values()))
    domain = rng.choice(len(shares), len(prompt_tokens), p=shares / shares.sum())
    topic = rng.integers(0, moe.topics, len(prompt_tokens))
    parts = [slice(start, start + CHUNK) for start in range(0, len(prompt_tokens), CHUNK)]
    made = [_requests(population, domain[p], topic[p], prompt_tokens[p], rng) for p in parts]
    prefill, rates, gates = (np.concatenate(own) for own in zip(*made, strict=True))
    traces = ExpertTraces(
        model=moe.model,
        source=f"{moe.model}, with gate probabilities",
        evidence="model",
        top_k=moe.top_k,
        num_layers=moe.num_layers,
        layers=layers,
        label=np.array(list(moe.domains))[domain],
        prompt_tokens=prompt_tokens.astype(np.int32),
        prefill=prefill,
        rates=rates,
    )
    return traces, gates


def _requests(
    population: Population,
    domain: npt.NDArray[np.int64],
    topic: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[npt.NDArray[np.uint32], Floats, Floats]:
    """Prefill counts, decode rates and gate sums of some requests."""
    moe = population.moe
    shape = (len(domain), len(population.layers), moe.num_experts)
    request = moe.scales.request * rng.standard_normal(shape, np.float32)
    own = [request + moe.scales.phase * rng.standard_normal(shape, np.float32) for _ in range(2)]
    before, after = population.logits(domain, topic, (own[0], own[1]))
    counts = draw_counts(inclusion(before, moe.top_k), tokens, moe.top_k, rng)
    return counts, inclusion(after, moe.top_k), gate_sums(before, tokens, rng)


def gate_sums(logits: npt.NDArray[Any], tokens: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """Sums over `tokens` [n] tokens of softmax(logits + Gumbel noise), [n, L, E], from TOKENS drawn ones."""
    weights = np.exp(logits - logits.max(axis=2, keepdims=True)).astype(np.float32)
    total = np.zeros_like(weights)
    for _ in range(TOKENS):
        odds = weights / np.maximum(rng.standard_exponential(weights.shape, np.float32), LEAST)
        total += odds / odds.sum(axis=2, keepdims=True)
    sums: Floats = total * (tokens / TOKENS).astype(np.float32)[:, None, None]
    return sums
