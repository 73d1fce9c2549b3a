"""Figure 2: published measurements of one MoE layer, by the experts that it activates and by its tokens."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np

from eldr.errors import CalibrationError
from eldr.traces.recorded import traces_folder

BALANCED = (
    ("Qwen3-30B-A3B", "bfloat16", "h200_sxm"),
    ("Qwen3-30B-A3B", "bfloat16", "h100_sxm"),
    ("GPT-OSS-120B", "w4a16_mxfp4", "h200_sxm"),
    ("Gemma4-26B-A4B", "bfloat16", "h200_sxm"),
)
"""Model, type and GPU of the measurements with balanced routing that stand beside the forced ones."""

VLLM = "0.24.0"
LARGEST_BATCH = 128


def forced(name: str = "rtxpro6000_qwen3_30b_moe.csv") -> dict[str, Any]:
    """Qwen3-30B-A3B's layer with forced routing: time (us) by tokens and active experts, each set by
    itself."""
    with _latency(name).open(newline="") as file:
        rows = [
            (int(r["tokens"]), int(r["activated_experts"]), float(r["time_us"])) for r in csv.DictReader(file)
        ]
    by_tokens: dict[str, dict[str, float]] = {}
    for tokens, active, time_us in rows:
        by_tokens.setdefault(str(tokens), {})[str(active)] = time_us
    return {"device": "RTX PRO 6000", "model": "Qwen3-30B-A3B", "by_tokens": by_tokens, **_fit(rows, 256)}


def balanced(model: str, dtype: str, gpu: str) -> dict[str, Any]:
    """A layer with balanced routing: n tokens activate min(E, k x n) experts, so tokens sweep the experts."""
    wanted = {"model": model, "moe_dtype": dtype, "version": VLLM, "distribution": "balanced"}
    rows = []
    with gzip.open(_latency("aiconfigurator_moe_tp1.csv.gz"), "rt", newline="") as file:
        for row in csv.DictReader(file):
            own = row["table"].startswith(f"{gpu}/moe/vllm/") and row.items() >= wanted.items()
            if own and int(row["num_tokens"]) <= LARGEST_BATCH:
                tokens = int(row["num_tokens"])
                active = min(int(row["num_experts"]), int(row["topk"]) * tokens)
                rows.append((tokens, active, float(row["latency_us"])))
    if not rows:
        raise CalibrationError(f"the latency table has no {model}, {dtype}, on {gpu} with vLLM {VLLM}")
    points = sorted({(active, time_us) for _, active, time_us in rows})
    return {
        "device": gpu.split("_")[0].upper(),
        "model": model,
        "dtype": dtype,
        "points": points,
        **_fit(rows, LARGEST_BATCH),
    }


def _fit(rows: list[tuple[int, int, float]], largest: int) -> dict[str, float]:
    """Least squares time_us = a0 + a1 x active + b x tokens up to `largest` tokens, and its R2."""
    used = np.array([row for row in rows if row[0] <= largest], np.float64)
    left = np.stack([np.ones(len(used)), used[:, 1], used[:, 0]], axis=1)
    (a0, a1, b), *_ = np.linalg.lstsq(left, used[:, 2], rcond=None)
    rest = used[:, 2] - left @ (a0, a1, b)
    return {"a0": float(a0), "a1": float(a1), "b": float(b), "r2": float(1 - rest.var() / used[:, 2].var())}


def _latency(name: str) -> Path:
    folder = traces_folder()
    path = None if folder is None else folder.parent / "latency" / name
    if path is None or not path.is_file():
        raise CalibrationError(f"no latency/{name}; set ELDR_DATA to the folder that holds it")
    return path
