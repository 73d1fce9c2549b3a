"""Sampled continuations together with the experts that they used."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eldr.embedded.data import END_OF_TEXT_ID
from eldr.embedded.network import KeyValue, Network


class Sampled(NamedTuple):
    """What the n requests of one batch became."""

    texts: NDArray[np.int64]  # [n, tokens], each beginning with its prompt
    choices: NDArray[np.uint8]  # [n, tokens - 1, layers, top_k]: the last token is sampled but never fed back


def sample(
    network: Network, prompts: Sequence[Sequence[int]], tokens: int, seed: int, temperature: float = 1.0
) -> Sampled:
    """Continue prompts of any lengths up to `tokens` tokens each, without ending a text early."""
    generator = torch.Generator().manual_seed(seed)
    caches: list[list[KeyValue]] = [[] for _ in network.layers]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    texts = torch.zeros(len(prompts), tokens, dtype=torch.int64)
    for row, prompt in zip(texts, prompts, strict=True):
        row[: len(prompt)] = torch.as_tensor(prompt)
    choices = []
    ids = texts[:, : int(lengths.min())]
    with torch.inference_mode():
        for position in range(ids.shape[1], tokens):
            out = network(ids, caches)
            choices.append(_by_request(out.choices, len(prompts)))
            logits = out.logits[:, -1] / temperature
            logits[:, END_OF_TEXT_ID] = -torch.inf
            drawn = _draw(logits.softmax(-1), generator)
            texts[:, position] = torch.where(position < lengths, texts[:, position], drawn)
            ids = texts[:, position : position + 1]
    return Sampled(texts.numpy(), np.concatenate(choices, 1))


def _draw(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One index a row; torch.multinomial draws a number for every entry, which takes most of a run."""
    sums = probabilities.cumsum(-1)
    points = torch.rand(len(sums), 1, generator=generator) * sums[:, -1:]
    return torch.searchsorted(sums, points, right=True).clamp_max_(sums.shape[1] - 1)[:, 0]


def _by_request(choices: Tensor, requests: int) -> NDArray[np.uint8]:
    """[layers, requests * tokens, top_k] -> [requests, tokens, layers, top_k]."""
    layers, _, top_k = choices.shape
    by_token: NDArray[np.uint8] = choices.view(layers, requests, -1, top_k).permute(1, 2, 0, 3).numpy()
    return by_token.astype(np.uint8)
