"""What the suite serves: requests of one model that calibrate, others that are served, and its step costs."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from eldr.paper.beyond.pairs import embedded_pairs
from eldr.profile.active import expected_active
from eldr.profile.artifact import Profile
from eldr.profile.fit import fit_profile
from eldr.sim import Kinds, Rates, StepCost
from eldr.sim.costs import named_cost
from eldr.traces import ExpertTraces
from eldr.traces.embedded import TASKS
from eldr.traces.presets import preset
from eldr.traces.recorded import deepseek_v2_lite, gpt_oss_20b
from eldr.traces.synthetic import generate
from eldr.types import Matrix

MADE = 1000
"""Synthetic requests: half calibrate, half are served. Recorded ones are halved, too."""

PAIRS = "embedded_pairs.npz"
"""In the folder of what is recorded once."""

LAYERS = 8
"""Of a synthetic model so many layers are made, evenly spaced; a step costs what the mean of them does."""

LENGTHS = (400.0, 200.0, 800.0)
"""Median output tokens of the first, second and third label (in order of name), and so on in turn."""

SIGMA, LEAST_TOKENS, MOST_TOKENS = 0.5, 2, 2048
"""Of the output lengths' logarithm within a label, and where lengths are cut off."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """One draw. served: P kinds of requests, with signatures; rates: float32 [P, L, E], their decode choices;
    prefill: uint32 [P, L, E], the expert counts of their prompts.

    weights: float64 [P], how often each is asked for. median_tokens: float64 [P], of the outputs; sigma: of
    their logarithm, 0 where the recorded lengths are taken. calibration_*: of the C requests that the profile
    was fitted to; calibration_tokens: int64 [C], outputs.
    """

    served: Kinds
    prefill: Array
    rates: Array
    weights: Array
    prompt_tokens: Array
    median_tokens: Array
    sigma: float
    profile: Profile
    calibration_signatures: Matrix
    calibration_rates: Array
    calibration_tokens: Array
    cost: StepCost
    evidence: str

    def output_tokens(self, kind: Array, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw output lengths for requests of these kinds [n]."""
        return _lengths(self.median_tokens[kind], self.sigma, rng)

    def active_experts(self, batch: int, rng: np.random.Generator) -> float:
        """Distinct experts a step and layer of batches that are drawn from all requests."""
        drawn = rng.choice(len(self.weights), (16, batch), p=self.weights)
        return float(np.mean([expected_active(self.rates[rows]) for rows in drawn]))


@functools.lru_cache(maxsize=1)
def world_of(source: str, workers: int, seed: int, kept: str) -> World:
    """Draw a world: which requests calibrate, the profile for so many workers, a synthetic model.

    kept: folder of what is recorded once. ConfigError for an unknown source, CalibrationError without data.
    """
    traces, cost = SOURCES[source](seed, Path(kept))
    rng = np.random.default_rng([seed, 11])
    order = rng.permutation(len(traces))
    first, rest = order[: len(order) // 2], order[len(order) // 2 :]
    rates = np.minimum(traces.decode_rates(), 1)
    median, sigma = _medians(traces)
    calibration = traces.rows(first).calibration_set()
    profile = fit_profile(calibration, workers, seed=seed, transformation="idf")[0]
    transform = profile.signature_transform()
    labels = traces.label[rest]
    return World(
        served=Kinds(labels, Rates(rates[rest]), transform.transform_many(traces.prefill[rest])),
        prefill=traces.prefill[rest],
        rates=rates[rest],
        weights=_weights(source, labels),
        prompt_tokens=traces.prompt_tokens[rest].astype(np.int64),
        median_tokens=median[rest],
        sigma=sigma,
        profile=profile,
        calibration_signatures=transform.transform_many(traces.prefill[first]),
        calibration_rates=rates[first],
        calibration_tokens=_lengths(median[first], sigma, rng),
        cost=cost,
        evidence=traces.evidence,
    )


def _medians(traces: ExpertTraces) -> tuple[Array, float]:
    """Median output tokens of each request, and the spread around it."""
    if traces.model == "gpt-oss-20b":
        assert traces.ids is not None
        return traces.ids.tokens().astype(np.float64), 0.0
    label = np.unique(traces.label, return_inverse=True)[1]
    return np.array(LENGTHS)[label % len(LENGTHS)], SIGMA


def _lengths(median: Array, sigma: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    drawn = median * np.exp(sigma * rng.standard_normal(len(median)))
    tokens: npt.NDArray[np.int64] = np.clip(np.rint(drawn), LEAST_TOKENS, MOST_TOKENS).astype(np.int64)
    return tokens


SKEW = {"en": 47.6, "zh": 27.8, "ru": 9.2, "fr": 2.4, "es": 1.8, "de": 11.2}
"""Percent of requests by language in WildChat (the paper's Fig. 5); German stands for all others."""


def _weights(source: str, labels: npt.NDArray[np.str_]) -> Array:
    weights: Array = np.ones(len(labels))
    if source == "embedded/languages":
        for name in np.unique(labels):
            weights[labels == name] = SKEW[name] / (labels == name).sum()
    weights /= weights.sum()
    return weights


def _gpt_oss(seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:  # noqa: ARG001
    big = named_cost("h200-gpt-oss-120b")
    return gpt_oss_20b(), replace(_shrunk(big, 24), experts=32, model="GPT-OSS-20B")


def _deepseek(seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:  # noqa: ARG001
    """An expert of DeepSeek-V2-Lite is 2048 x 1408, one of Qwen3-30B-A3B 2048 x 768."""
    qwen = named_cost("h200-qwen3-30b-a3b")
    moe = replace(qwen.moe, active_us=qwen.moe.active_us * 1408 / 768)
    return deepseek_v2_lite(), replace(_shrunk(qwen, 26), moe=moe, experts=64, model="DeepSeek-V2-Lite")


def _embedded(workload: str, seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:  # noqa: ARG001
    arrays = embedded_pairs(kept / PAIRS)
    wanted = np.isin(arrays["label"], (*TASKS, "medicine")) == (workload == "tasks")
    layers = arrays["prefill"].shape[1]
    traces = ExpertTraces(
        model="embedded",
        source="the embedded model on its own prompts, run in float32",
        evidence="trace",
        top_k=4,
        num_layers=layers,
        layers=np.arange(layers),
        label=arrays["label"][wanted],
        prompt_tokens=arrays["prompt_tokens"][wanted].astype(np.int32),
        prefill=arrays["prefill"][wanted],
        rates=arrays["rates"][wanted],
    )
    return traces, replace(named_cost("h200-qwen3-30b-a3b"), experts=64, top_k=4, model="embedded")


def _synthetic(model: str, workload: str, cost: str, seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:  # noqa: ARG001
    moe = preset(model, workload)
    layers = np.unique(np.linspace(0, moe.num_layers - 1, LAYERS).round().astype(np.int64))
    return generate(moe, MADE, prompt_tokens=300, layers=layers, seed=seed), named_cost(cost)


def _batch_led(seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:
    """Steps that wait for their requests, not for expert weights, as on a CPU."""
    traces, cost = SOURCES["qwen3-30b-a3b/tasks"](seed, kept)
    moe = replace(cost.moe, active_us=0.05 * cost.moe.active_us)
    return traces, replace(cost, moe=moe, rest=replace(cost.rest, token_us=500.0), fits=())


def _shrunk(cost: StepCost, layers: int) -> StepCost:
    """The same layers, fewer of them."""
    share = layers / cost.layers
    attention = replace(
        cost.attention,
        fixed_us=share * cost.attention.fixed_us,
        sequence_us=share * cost.attention.sequence_us,
        context_us=share * cost.attention.context_us,
    )
    rest = replace(cost.rest, fixed_us=share * cost.rest.fixed_us)
    return replace(cost, layers=layers, attention=attention, rest=rest, fits=())


SOURCES: dict[str, Callable[[int, Path], tuple[ExpertTraces, StepCost]]] = {
    "gpt-oss-20b": _gpt_oss,
    "deepseek-v2-lite": _deepseek,
    "embedded/tasks": functools.partial(_embedded, "tasks"),
    "embedded/languages": functools.partial(_embedded, "languages"),
    "qwen3-30b-a3b/tasks": functools.partial(_synthetic, "qwen3-30b-a3b", "tasks", "mi300x-qwen3-30b-a3b"),
    "qwen3-30b-a3b/languages": functools.partial(
        _synthetic, "qwen3-30b-a3b", "languages", "mi300x-qwen3-30b-a3b"
    ),
    "batch-led": _batch_led,
}
