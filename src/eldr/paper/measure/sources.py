"""The sources of expert choices by name, for settings of pieces: each process loads one once."""

import functools
from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt

from eldr.registry import Registry
from eldr.traces import ExpertTraces
from eldr.traces.embedded import embedded
from eldr.traces.presets import SHAPES, preset
from eldr.traces.recorded import deepseek_v2_lite, gpt_oss_20b
from eldr.traces.synthetic import SyntheticMoE, generate

REQUESTS = 1000
LAYERS = 16
"""Of a synthetic model: so many requests, and so many of its layers, evenly spaced."""

PROMPT_TOKENS = 300


def made_layers(moe: SyntheticMoE) -> npt.NDArray[np.int64]:
    """The layers of a synthetic model that are made."""
    return np.unique(np.linspace(0, moe.num_layers - 1, LAYERS).round().astype(np.int64))


SOURCES: Registry[Callable[[], ExpertTraces]] = Registry("source")


def _synthetic(model: str, workload: str) -> ExpertTraces:
    moe = preset(model, workload)
    return generate(moe, REQUESTS, prompt_tokens=PROMPT_TOKENS, layers=made_layers(moe))


SOURCES.register("gpt-oss-20b")(gpt_oss_20b)
SOURCES.register("deepseek-v2-lite")(deepseek_v2_lite)
SOURCES.register("embedded/tasks")(functools.partial(embedded, workload="tasks"))
SOURCES.register("embedded/languages")(functools.partial(embedded, workload="languages"))
for _model, _workload in product(SHAPES, ("tasks", "languages")):
    SOURCES.register(f"{_model}/{_workload}")(functools.partial(_synthetic, _model, _workload))


@functools.lru_cache(maxsize=2)
def traces_of(source: str) -> ExpertTraces:
    """The traces of a registered source. CalibrationError where its data is not there."""
    return SOURCES[source]()
