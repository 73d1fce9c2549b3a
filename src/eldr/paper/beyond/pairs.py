"""Prefill/decode pairs of the embedded model on its own prompts: what its experts do, without an engine.

The network runs in float32 in this process, so that nobody needs a recording: about a minute of one core. The
result is kept in a file, which is made anew where it is missing.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.calibrate.prompts import read_prompts
from eldr.embedded import model_path, prompts_path
from eldr.files import replacing

OUTPUT_TOKENS = 64
AT_ONCE = 128
"""Prompts that are run together; those of one batch are of nearly one length."""


def embedded_pairs(kept: Path) -> dict[str, Any]:
    """label str [N], prompt_tokens [N], prefill uint32 [N, L, E] and decode rates float32 [N, L, E].

    kept: the file to read, or to write. Needs torch where it is not there.
    """
    if not kept.exists():
        arrays = _run()
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as file:
            np.savez_compressed(file, **arrays)
    with np.load(kept, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _run() -> dict[str, Any]:
    from tokenizers import Tokenizer

    from eldr.embedded.export import load_network
    from eldr.embedded.sampling import sample

    prompts = read_prompts(prompts_path()).prompts
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    ids = [tokenizer.encode(prompt.text, add_special_tokens=False).ids for prompt in prompts]
    lengths = np.array([len(one) for one in ids])
    network = load_network(model_path())
    order, experts = np.argsort(lengths, kind="stable"), network.shape.num_experts
    shape = (len(ids), network.shape.num_layers, experts)
    prefill, decode = np.zeros(shape, np.uint32), np.zeros(shape, np.float32)
    for number, start in enumerate(range(0, len(ids), AT_ONCE)):
        rows = order[start : start + AT_ONCE]
        most = int(lengths[rows].max()) + OUTPUT_TOKENS + 1
        choices = sample(network, [ids[row] for row in rows], most, seed=number).choices
        for row, chosen in zip(rows, choices, strict=True):
            prompt = lengths[row]
            prefill[row] = _counts(chosen[:prompt], experts)
            decode[row] = _counts(chosen[prompt : prompt + OUTPUT_TOKENS], experts) / OUTPUT_TOKENS
    labels = np.array([prompt.label for prompt in prompts])
    return {"label": labels, "prompt_tokens": lengths, "prefill": prefill, "rates": decode}


def _counts(ids: npt.NDArray[np.uint8], experts: int) -> npt.NDArray[np.float32]:
    """[tokens, L, k] -> [L, E]."""
    return np.stack(
        [np.bincount(layer.ravel(), minlength=experts) for layer in ids.transpose(1, 0, 2)]
    ).astype(np.float32)
