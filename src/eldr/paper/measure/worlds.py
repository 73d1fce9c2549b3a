"""What a simulated run is made of, drawn once for a model, a workload and a seed: requests and step costs."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.paper.measure.costs import cost_of
from eldr.paper.measure.gates import generate_with_gates
from eldr.paper.measure.sources import made_layers, traces_of
from eldr.sim import Rates, StepCost
from eldr.traces import ExpertTraces
from eldr.traces.presets import SHAPES, preset
from eldr.traces.synthetic import generate

Counts = npt.NDArray[Any]

CALIBRATED = 1000
"""Calibration requests of a synthetic model, as in the paper. Recorded ones are halved."""

SERVED = 800
"""Different requests that are served, again and again; none of them calibrates."""

PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_RANGE = 250.0, 0.7, (16, 4096)
"""Prompt lengths, log-normal: about those of the public benchmarks."""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Requests [P] that are served and requests [C] that calibrate, of one model, and its cost of steps.

    prefill, calibration_prefill: counts [.., L, E]; gates, calibration_gates: summed gate probabilities of
    the same prompts, None where nobody asked. experts: decode choices of those served; calibration_rates [C,
    L, E].
    """

    labels: npt.NDArray[np.str_]
    prompt_tokens: npt.NDArray[np.int64]
    prefill: Counts
    gates: Counts | None
    experts: Rates
    calibration_prefill: Counts
    calibration_gates: Counts | None
    calibration_rates: Counts
    cost: StepCost


@functools.lru_cache(maxsize=1)
def world_of(model: str, workload: str, seed: int, gated: bool = False) -> World:
    """Draw a world. Deterministic by its arguments. gated: with gate probabilities.

    A step of a synthetic model costs what the mean of its made layers does.
    """
    traces, gates, calibrated = _draw(model, workload, seed, gated)
    first, rest = slice(calibrated), slice(calibrated, None)
    return World(
        labels=traces.label[rest],
        prompt_tokens=traces.prompt_tokens[rest].astype(np.int64),
        prefill=traces.prefill[rest],
        gates=None if gates is None else gates[rest],
        experts=Rates(np.minimum(traces.decode_rates(rest), 1)),
        calibration_prefill=traces.prefill[first],
        calibration_gates=None if gates is None else gates[first],
        calibration_rates=traces.decode_rates(first),
        cost=cost_of(model),
    )


def _draw(model: str, workload: str, seed: int, gated: bool) -> tuple[ExpertTraces, Counts | None, int]:
    """Requests in random order, their gates if asked for, and how many of them calibrate."""
    rng = np.random.default_rng([seed, 7])
    if model not in SHAPES:
        traces = traces_of(model)
        return traces.rows(rng.permutation(len(traces))), None, len(traces) // 2
    moe = preset(model, workload)
    lengths = rng.lognormal(np.log(PROMPT_MEDIAN), PROMPT_SIGMA, CALIBRATED + SERVED)
    tokens = np.clip(np.rint(lengths), *PROMPT_RANGE).astype(np.int64)
    if gated:
        return *generate_with_gates(moe, tokens, made_layers(moe), seed), CALIBRATED
    return (
        generate(moe, len(tokens), prompt_tokens=tokens, layers=made_layers(moe), seed=seed),
        None,
        CALIBRATED,
    )
