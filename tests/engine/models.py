"""Random models of other MoE layouts, small enough for a test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from support.later import Later

if TYPE_CHECKING:
    from transformers import PretrainedConfig

transformers = Later("transformers")

SHAPE = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
}


def dense_between() -> PretrainedConfig:
    """Qwen3-MoE whose layers 0 and 2 have no experts."""
    return transformers.Qwen3MoeConfig(
        **SHAPE,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        intermediate_size=128,
        decoder_sparse_step=1,
        mlp_only_layers=[0, 2],
        norm_topk_prob=True,
    )


def shared_expert() -> PretrainedConfig:
    """Qwen2-MoE: routed experts beside one that every token passes."""
    return transformers.Qwen2MoeConfig(
        **SHAPE,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        intermediate_size=128,
    )


def gpt_oss() -> PretrainedConfig:
    """GPT-OSS: sliding-window layers between full ones, so two KV cache groups."""
    return transformers.GptOssConfig(
        **SHAPE,
        num_local_experts=16,
        num_experts_per_tok=4,
        intermediate_size=64,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )


def gemma4() -> PretrainedConfig:
    """Gemma-4: a dense MLP beside the routed experts in every layer, and full layers with larger heads."""
    return transformers.Gemma4TextConfig(
        **SHAPE,
        enable_moe_block=True,
        num_experts=16,
        top_k_experts=4,
        moe_intermediate_size=64,
        intermediate_size=128,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        hidden_size_per_layer_input=0,
        global_head_dim=64,
    )


LAYOUTS: dict[str, Callable[[], PretrainedConfig]] = {
    "dense-between": dense_between,
    "shared-expert": shared_expert,
    "gpt-oss": gpt_oss,
    "gemma-4": gemma4,
}


def build(layout: str, folder: Path, tokenizer: Path) -> Path:
    """Writes the random fp32 model of `layout` into `folder`, with the tokenizer of the model at
    `tokenizer`.
    """
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(LAYOUTS[layout]())
    for name, parameter in model.named_parameters():
        if "norm" not in name and parameter.dim() > 1:
            # Routers that decide clearly: ties would make two right implementations differ.
            wide = any(part in name for part in ("embed", "gate.", "router."))
            torch.nn.init.normal_(parameter, std=1.0 if wide else 0.08)
    model.float().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    return folder
