"""A network small enough for unit tests, with random weights and few tokens."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from eldr.embedded.data import train_tokenizer
from eldr.embedded.export import export
from eldr.embedded.network import Network, Shape

SHAPE = Shape(
    vocab_size=300,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    num_experts=8,
    top_k=2,
    intermediate_size=16,
)


def small_network() -> Network:
    torch.manual_seed(0)
    network = Network(SHAPE)
    # Weights as they come out of a bfloat16 export, so that exporting loses nothing.
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16())
    network.eval()
    return network


def small_tokenizer() -> Tokenizer:
    return train_tokenizer({"en": ["a few words of text, 123 in all"] * 20}, SHAPE.vocab_size)


def small_model(folder: Path) -> Path:
    """An exported folder of `small_network`."""
    tokenizer = folder / "tokenizer.json"
    folder.mkdir(parents=True, exist_ok=True)
    small_tokenizer().save(str(tokenizer))
    export(small_network().state_dict(), SHAPE, tokenizer, folder)
    return folder
