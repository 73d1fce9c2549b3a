"""Expert choices of real models, where the data folder is there."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from eldr.profile.dataset import CalibrationSet


def deepseek_v2_lite() -> CalibrationSet:
    """DeepSeek-V2-Lite on four tasks, half of a sequence standing for its prompt. Skips without data."""
    named = os.environ.get("ELDR_DATA")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    path = folder / "traces" / "deepseek_v2_lite_esft.npz"
    if not path.is_file():
        pytest.skip("no traces of real models: set ELDR_DATA to the data folder")
    sequences: list[npt.NDArray[np.uint8]] = []
    labels: list[str] = []
    with np.load(path, allow_pickle=False) as traces:
        for task in ("intent", "law", "summary", "translation"):
            lengths = traces[f"{task}_seqlen"]
            sequences += np.split(traces[f"{task}_ids"], lengths.cumsum()[:-1])
            labels += [task] * len(lengths)
    halves = [(s[: len(s) // 2], s[len(s) // 2 :]) for s in sequences]
    return CalibrationSet(
        prefill_counts=np.stack([_count(prompt) for prompt, _ in halves]),
        decode_counts=np.stack([_count(output) for _, output in halves]),
        label=np.array(labels),
        prompt_tokens=np.array([len(prompt) for prompt, _ in halves], np.int32),
        output_tokens=np.array([len(output) for _, output in halves], np.int32),
        model="deepseek-v2-lite",
        top_k=6,
    )


def _count(ids: npt.NDArray[np.uint8], experts: int = 64) -> npt.NDArray[np.uint32]:
    """Count expert ids [tokens, L, top_k] into [L, E]."""
    layers = ids.shape[1]
    place = ids.astype(np.int64) + np.arange(layers)[:, None] * experts
    return np.bincount(place.ravel(), minlength=layers * experts).reshape(layers, experts).astype(np.uint32)
