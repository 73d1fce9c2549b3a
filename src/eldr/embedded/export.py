"""Write a trained network as a folder that Hugging Face and vLLM load as it is, and read it back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from eldr.embedded.data import END_OF_TEXT, END_OF_TEXT_ID
from eldr.embedded.network import Network, Shape
from eldr.files import replacing

# Not trained on conversations: the messages' texts, a line each, go on as one text.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"


def config_json(shape: Shape) -> dict[str, Any]:
    """The `config.json` of a Qwen3MoeForCausalLM of this shape."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "moe_intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "eos_token_id": END_OF_TEXT_ID,
        "pad_token_id": END_OF_TEXT_ID,
        "torch_dtype": "bfloat16",
    }


def shape_of(config: dict[str, Any]) -> Shape:
    """The inverse of `config_json`."""
    return Shape(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        num_experts=config["num_experts"],
        top_k=config["num_experts_per_tok"],
        intermediate_size=config["moe_intermediate_size"],
        context=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )


def to_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names and layouts of Qwen3MoeForCausalLM: one tensor for each of an expert's three matrices."""
    return {f"model.{name}": tensor for full, stack in state.items() for name, tensor in _split(full, stack)}


def _split(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield name, tensor
        return
    prefix, kind = name.rsplit(".", 1)
    for expert, matrix in enumerate(tensor):
        if kind == "down_proj":
            yield f"{prefix}.{expert}.down_proj.weight", matrix
        else:
            gate, up = matrix.chunk(2, 0)
            yield f"{prefix}.{expert}.gate_proj.weight", gate
            yield f"{prefix}.{expert}.up_proj.weight", up


def load_network(model: Path) -> Network:
    """The network of an exported folder, in float32: what measurements and tests run."""
    shape = shape_of(json.loads((model / "config.json").read_text(encoding="utf-8")))
    weights = load_file(model / "model.safetensors")
    network = Network(shape)
    for name, part in to_hugging_face(network.state_dict()).items():  # views of the network's own parameters
        part.copy_(weights[name])
    network.eval()
    return network


def export(state: dict[str, Tensor], shape: Shape, tokenizer: Path, model: Path) -> None:
    """Write the folder `model`; each file is put in place whole."""
    tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in to_hugging_face(state).items()}
    contents = {
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "tokenizer.json": tokenizer.read_bytes(),
        "config.json": _json(config_json(shape)),
        "tokenizer_config.json": _json(tokenizer_config_json(shape)),
        "generation_config.json": _json({"eos_token_id": END_OF_TEXT_ID, "pad_token_id": END_OF_TEXT_ID}),
    }
    for name, content in contents.items():
        with replacing(model / name) as file:
            file.write(content)


def tokenizer_config_json(shape: Shape) -> dict[str, Any]:
    """The `tokenizer_config.json`, chat template included, so that chat requests work."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
