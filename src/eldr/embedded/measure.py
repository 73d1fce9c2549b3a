"""Measure the shipped model's expert locality: `python -m eldr.embedded.measure --data DIR` writes its card.

Prompts are held-out text (split "val"). Everything that the card says is in `measured.json` beside it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from tokenizers import Tokenizer
from torch.nn import functional as F

from eldr.embedded import card, locality, model_path
from eldr.embedded import data as text
from eldr.embedded.export import load_network
from eldr.embedded.network import Network
from eldr.embedded.sampling import sample
from eldr.errors import ConfigError
from eldr.files import replacing
from eldr.program import EXISTING_FOLDER, run

REQUESTS = 80  # a domain
PREFILL_TOKENS = (64, 80, 96, 112, 128)
NEW_TOKENS = 64
BATCHES = (8, 16, 32, 64)
CLUSTERS = (2, 3, 4, 8)  # decode workers
CLUSTER_BATCHES = (8, 16)
DRAWS = 300  # batches drawn for each figure
LOSS_WINDOW = 256
LOSS_WINDOWS = 64  # a domain


def held_out_prompts(tokenizer: Tokenizer, texts: list[str], count: int) -> NDArray[np.int64]:
    """`count` prompts of the longest prefill: beginnings of texts first, then their next windows."""
    longest = max(PREFILL_TOKENS)
    encodings = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    windows = [
        (start, index)
        for index, ids in enumerate(encodings)
        for start in range(0, len(ids) - longest + 1, longest)
    ]
    if len(windows) < count:
        raise ConfigError(
            f"held-out text gives {len(windows)} prompts of {longest} tokens; {count} are needed"
        )
    return np.array([encodings[index][start : start + longest] for start, index in sorted(windows)[:count]])


def validation_loss(network: Network, tokens: text.Tokens) -> float:
    """Nats a token over the first windows of a held-out stream."""
    ids = torch.from_numpy(tokens[: (len(tokens) - 1) // LOSS_WINDOW * LOSS_WINDOW + 1].astype(np.int64))
    inputs, targets = (part.view(-1, LOSS_WINDOW)[:LOSS_WINDOWS] for part in (ids[:-1], ids[1:]))
    with torch.inference_mode():
        losses = [
            F.cross_entropy(network(x).logits.transpose(1, 2), y, reduction="none")
            for x, y in zip(inputs.split(16), targets.split(16), strict=True)
        ]
    return float(torch.cat(losses).mean())


def run_requests(
    network: Network, prompts: dict[str, NDArray[np.int64]]
) -> tuple[locality.Counts, NDArray[np.uint8], locality.Labels]:
    """Prefill counts [requests, layers, experts], decode choices [requests, steps, layers, top_k], labels."""
    prefill, decode, labels = [], [], []
    for part, length in enumerate(track(PREFILL_TOKENS, "running held-out requests")):
        rows = {domain: windows[part :: len(PREFILL_TOKENS), :length] for domain, windows in prompts.items()}
        batch = np.concatenate(list(rows.values()))
        choices = sample(network, batch.tolist(), length + NEW_TOKENS + 1, seed=part).choices
        prefill.append(locality.counts_of(choices[:, :length], network.shape.num_experts))
        decode.append(choices[:, length:])
        labels += [domain for domain, windows in rows.items() for _ in windows]
    return np.concatenate(prefill), np.concatenate(decode), np.array(labels)


def active_table(
    active: NDArray[np.bool_], labels: NDArray[np.generic], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Active experts of mixed batches and of batches of one label, by batch size; `change` is relative."""
    rng = np.random.default_rng(0)
    rows = []
    for size in sizes:
        mixed, grouped = (
            locality.active_experts(active, draw(labels, size, DRAWS, rng))
            for draw in (locality.mixed_batches, locality.grouped_batches)
        )
        rows.append({"batch": size, "mixed": mixed, "grouped": grouped, "change": grouped / mixed - 1})
    return rows


def cluster_tables(prefill: locality.Counts, active: NDArray[np.bool_]) -> dict[str, list[dict[str, Any]]]:
    """Batches grouped by cluster: clusters from one half of the requests, batches of the other."""
    known = np.arange(len(prefill)) % 2 == 0
    labels = {str(k): locality.cluster_labels(prefill, known, k)[~known] for k in CLUSTERS}
    return {k: active_table(active[~known], of_k, CLUSTER_BATCHES) for k, of_k in labels.items()}


def measure(network: Network, prompts: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """All figures of the card that come from running requests."""
    prefill, choices, labels = run_requests(network, prompts)
    experts = network.shape.num_experts
    active, decode = locality.one_hot(choices, experts), locality.counts_of(choices, experts)
    groups = {"all": text.DOMAINS, "tasks": text.TASKS, "languages": text.LANGUAGES}
    members = {name: np.isin(labels, domains) for name, domains in groups.items()}
    load = prefill.sum(0) / prefill.sum((0, 2))[0] * experts
    return {
        "requests": len(labels),
        "prefill_tokens": [min(PREFILL_TOKENS), max(PREFILL_TOKENS)],
        "decode_tokens": NEW_TOKENS,
        "active_experts": {
            name: active_table(active[of], labels[of], BATCHES) for name, of in members.items()
        },
        "clusters": cluster_tables(prefill, active),
        "correlation": locality.prefill_decode_correlation(prefill, decode, labels),
        "rho": {name: locality.signature_quality(prefill[of], decode[of]) for name, of in members.items()},
        "touched": float((prefill > 0).mean()),
        "largest_load": float(load.max()),
        "experts": load.size,
        "unused_experts": int((load < 0.01).sum()),
    }


@click.command()
@click.option("--data", type=EXISTING_FOLDER, required=True, help="Folder of <domain>.jsonl.xz files.")
@click.option("--model", type=EXISTING_FOLDER, default=None, help="Model folder; the shipped one if absent.")
def main(data: Path, model: Path | None) -> None:
    """Measure MODEL on the held-out text of DATA and write measured.json and README.md into it."""
    model = model or model_path()
    training = card.training_facts(model)
    network, tokenizer = load_network(model), Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = {domain: text.read_texts(data, domain, "val") for domain in text.DOMAINS}
    prompts = {domain: held_out_prompts(tokenizer, texts[domain], REQUESTS) for domain in text.DOMAINS}
    measured = measure(network, prompts)
    measured["validation_loss"] = {
        domain: validation_loss(network, text.encode_texts(tokenizer, texts[domain]))
        for domain in text.DOMAINS
    }
    with replacing(model / "measured.json") as file:
        file.write((json.dumps(measured, indent=2) + "\n").encode())
    with replacing(model / "README.md") as file:
        file.write(card.card(training, measured).encode())


if __name__ == "__main__":
    run(main)
