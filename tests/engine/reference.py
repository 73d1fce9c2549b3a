"""An independent account of a model's expert choices: Hugging Face's router logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from support.later import Later

if TYPE_CHECKING:
    from transformers import PreTrainedModel

transformers = Later("transformers")

TIE = 3e-6
"""Router logits closer than this are equal in fp32: two right implementations may choose differently."""


@dataclass(frozen=True)
class Choices:
    """Expert ids [n, L, k], each row sorted; tied: somewhere the last one chosen equals the next."""

    ids: NDArray[np.int64]
    tied: bool


@lru_cache(maxsize=4)
def load(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model on the CPU, in evaluation mode."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def choices(path: Path, tokens: Sequence[int], dtype: torch.dtype = torch.float32) -> Choices:
    """What the model's routers choose for each of the tokens."""
    model = load(path, dtype)
    torch.set_num_threads(1)  # engines run beside the tests; OpenMP's barriers are slow on shared cores
    with torch.no_grad():
        output = model(torch.tensor([list(tokens)]), output_router_logits=True, use_cache=False)
    logits = torch.stack([layer.view(len(tokens), -1).float() for layer in output.router_logits], dim=1)
    k = top_k(model)
    best = logits.topk(k + 1, dim=-1)
    tied = bool((best.values[..., k - 1] - best.values[..., k]).min() < TIE)
    return Choices(np.sort(best.indices[..., :k].numpy(), axis=-1), tied)


def count(ids: NDArray[np.integer], experts: int) -> NDArray[np.int64]:
    """Counts [L, E] of ids [n, L, k], by a plain loop over the layers."""
    return np.stack([np.bincount(ids[:, layer].ravel(), minlength=experts) for layer in range(ids.shape[1])])


def mismatches(one: NDArray[np.integer], other: NDArray[np.integer]) -> int:
    """Assignments that differ between two counts [L, E] of the same tokens."""
    return int(np.abs(one.astype(np.int64) - other.astype(np.int64)).sum()) // 2


def top_k(model: PreTrainedModel) -> int:
    """Experts a token and layer."""
    config = model.config.get_text_config()
    return int(getattr(config, "top_k_experts", None) or config.num_experts_per_tok)


def num_experts(model: PreTrainedModel) -> int:
    """Experts a layer."""
    config = model.config.get_text_config()
    return int(getattr(config, "num_experts", None) or config.num_local_experts)
