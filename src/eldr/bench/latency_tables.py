"""Reads the measured latencies of the data folder (`latency/`), which are not part of this project."""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eldr.bench.model_shapes import ModelShape
from eldr.errors import CalibrationError

Floats = npt.NDArray[np.float64]
Row = dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class MoeLatencies:
    """One MoE layer: active experts, tokens and microseconds, each [n]."""

    active: Floats
    tokens: Floats
    latency_us: Floats

    def up_to(self, tokens: int) -> "MoeLatencies":
        keep = self.tokens <= tokens
        return MoeLatencies(self.active[keep], self.tokens[keep], self.latency_us[keep])


def read_moe(folder: Path, table: str, shape: ModelShape) -> MoeLatencies:
    """Rows of a table whose tokens spread evenly over experts: min(E, top_k x tokens) are active."""
    rows = _rows(
        folder / "aiconfigurator_moe_tp1.csv.gz",
        lambda r: (
            (r["table"], r["model"], r["moe_dtype"], r["distribution"])
            == (table, shape.key, shape.dtype, "balanced")
        ),
    )
    tokens = _column(rows, "num_tokens")
    return MoeLatencies(np.minimum(shape.experts, shape.top_k * tokens), tokens, _column(rows, "latency_us"))


def read_forced(folder: Path) -> MoeLatencies:
    """Qwen3-30B-A3B on an RTX PRO 6000, with the number of active experts forced."""
    rows = _rows(folder / "rtxpro6000_qwen3_30b_moe.csv")
    return MoeLatencies(_column(rows, "activated_experts"), _column(rows, "tokens"), _column(rows, "time_us"))


def read_attention(
    folder: Path, gpu: str, heads: int, head_dim: int, window: int
) -> tuple[Floats, Floats, Floats]:
    """Decode attention of one layer in bfloat16: batch, context of each sequence, microseconds."""
    wanted = (gpu, str(heads), str(head_dim), "bfloat16", str(window))
    columns = ("gpu", "num_heads", "head_dim", "kv_cache_dtype", "window_size")
    rows = _rows(
        folder / "aiconfigurator_decode_attention.csv.gz", lambda r: tuple(r[c] for c in columns) == wanted
    )
    return _column(rows, "batch_size"), _column(rows, "step") + 1, _column(rows, "latency_us")


def read_rtx_attention(folder: Path) -> tuple[Floats, Floats, Floats]:
    """The same on an RTX PRO 6000 for Qwen3-30B-A3B, steps without prefill."""
    rows = _rows(
        folder / "rtxpro6000_qwen3_30b_attention.csv",
        lambda r: r["prefill_chunk"] == "0" and r["n_decode"] != "0",
    )
    return _column(rows, "n_decode"), _column(rows, "kv_decode"), _column(rows, "time_us")


def read_gemm(folder: Path, gpu: str, n: int, k: int) -> tuple[Floats, Floats]:
    """A projection in bfloat16: tokens, microseconds."""
    wanted = (gpu, "bfloat16", str(n), str(k))
    rows = _rows(
        folder / "aiconfigurator_gemm.csv.gz",
        lambda r: (r["gpu"], r["gemm_dtype"], r["n"], r["k"]) == wanted,
    )
    return _column(rows, "m"), _column(rows, "latency_us")


def read_rtx_parts(folder: Path) -> dict[str, tuple[Floats, Floats]]:
    """Everything beside MoE and attention on an RTX PRO 6000: part to tokens and microseconds."""
    dense = _rows(folder / "rtxpro6000_qwen3_30b_dense.csv")
    sequence = _rows(folder / "rtxpro6000_qwen3_30b_per_sequence.csv")
    parts = {}
    for rows, unit in ((dense, "tokens"), (sequence, "sequences")):
        for name in dict.fromkeys(row["layer"] for row in rows):
            own = [row for row in rows if row["layer"] == name]
            parts[name] = _column(own, unit), _column(own, "time_us")
    return parts


def _rows(path: Path, wanted: Callable[[Row], bool] = lambda _: True) -> list[Row]:
    rows = [row for row in _read(path) if wanted(row)]
    if not rows:
        raise CalibrationError(f"{path} has no row of what was asked for")
    return rows


@cache
def _read(path: Path) -> list[Row]:
    """All rows of a table, which many costs are made from."""
    if not path.is_file():
        raise CalibrationError(f"no latency table at {path}; set ELDR_DATA to the data folder")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _column(rows: list[Row], name: str) -> Floats:
    return np.array([float(row[name]) for row in rows])
