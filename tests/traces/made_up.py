"""Tiny files in the form of the published traces."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def ids(tokens: int, layers: int, experts: int, top_k: int, seed: int = 0) -> NDArray[np.uint8]:
    """[tokens, layers, top_k] distinct experts a token and layer."""
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(experts, dtype=np.uint8), (tokens, layers, 1)), axis=2)[..., :top_k]


def gpt_oss_file(folder: Path, lengths: list[int]) -> NDArray[np.uint8]:
    """Three layers instead of 24."""
    chosen = ids(sum(lengths), 3, 32, 4)
    np.savez(
        folder / "gpt_oss_20b_decode.npz",
        ids=chosen,
        lengths=np.array(lengths, np.int32),
        dataset=np.array(["mmlu_test"] * len(lengths)),
        category=np.array(["college_medicine", "professional_law", "abstract_algebra"][: len(lengths)]),
    )
    return chosen


def esft_file(folder: Path, lengths: dict[str, list[int]]) -> dict[str, NDArray[np.uint8]]:
    """Two layers instead of 26."""
    chosen = {
        task: ids(sum(sizes), 2, 64, 6, seed=place) for place, (task, sizes) in enumerate(lengths.items())
    }
    sizes = {f"{task}_seqlen": np.array(of, np.int64) for task, of in lengths.items()}
    np.savez(folder / "deepseek_v2_lite_esft.npz", **{f"{t}_ids": c for t, c in chosen.items()}, **sizes)
    return chosen
