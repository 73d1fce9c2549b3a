"""Synthetic MoEs in the shape of real models, with fitted statistics: `preset("qwen3-30b-a3b", "tasks")`.

The scales are in presets.json, which `python -m eldr.traces.fit` writes; docs/synthetic.md shows what they
were fitted to and how well. They are fitted in the shape of Qwen3-30B-A3B, about which most is known. The
other models take its scales: what differs between them is layers, experts and top-k.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from eldr.errors import ConfigError
from eldr.traces.synthetic import Scales, SyntheticMoE

Workload = Literal["tasks", "languages"]

SHAPES: dict[str, tuple[int, int, int]] = {
    "qwen3-30b-a3b": (48, 128, 8),
    "gpt-oss-120b": (36, 128, 4),
    "gemma-4-26b-a4b": (30, 128, 8),
    "qwen3-235b-a22b": (94, 128, 8),
}
"""(MoE layers, experts, top-k) by the models' public configurations."""

FITTED = "qwen3-30b-a3b"


def preset(model: str, workload: str) -> SyntheticMoE:
    """The synthetic MoE of a shape and a workload. ConfigError for unknown names."""
    if model not in SHAPES:
        raise ConfigError(f"no synthetic {model!r}; known: {', '.join(SHAPES)}")
    if workload not in (known := fitted()):
        raise ConfigError(f"no workload {workload!r}; known: {', '.join(known)}")
    return make(model, known[workload])


def make(model: str, given: dict[str, Any]) -> SyntheticMoE:
    """A shape with the parameters of one workload, as presets.json holds them."""
    layers, experts, top_k = SHAPES[model]
    return SyntheticMoE(
        model=f"synthetic {model}",
        num_layers=layers,
        num_experts=experts,
        top_k=top_k,
        domains=given["domains"],
        scales=Scales(**given["scales"]),
        similarity=given["similarity"] and tuple(map(tuple, given["similarity"])),
        topics=given["topics"],
        shared_topics=given["shared_topics"],
        depth=tuple(given["depth"]),
    )


@cache
def fitted() -> dict[str, Any]:
    """The fitted parameters by workload."""
    text = files("eldr.traces").joinpath("presets.json").read_text("utf-8")
    workloads: dict[str, Any] = json.loads(text)["workloads"]
    return workloads
