"""Made-up traces, and what pieces could have returned, for tests of figures."""

import hashlib
from typing import Any

import numpy as np

from eldr.paper.figure import Figure
from eldr.paper.measure import benchmarks, gated, latency, locality, mixes, serving, signatures
from eldr.paper.pieces import Piece
from eldr.traces import ExpertTraces

DOMAINS = ("code", "law")


def traces(requests: int = 24, layers: int = 3, experts: int = 8, seed: int = 0) -> ExpertTraces:
    """Two domains that prefer one half of the experts each, in prefill as in decode; top-2, 30 prompt
    tokens."""
    rng = np.random.default_rng(seed)
    label = np.array(DOMAINS)[np.arange(requests) % 2]
    liked = (np.arange(experts) < experts // 2) == (label == "code")[:, None, None]
    weights = np.where(liked, 3.0, 1.0) * rng.uniform(0.8, 1.2, (requests, layers, experts))
    rates = 2 * weights / weights.sum(axis=2, keepdims=True)
    return ExpertTraces(
        model="made-up",
        source="made up",
        evidence="trace",
        top_k=2,
        num_layers=layers,
        layers=np.arange(layers),
        label=label,
        prompt_tokens=np.full(requests, 30, np.int32),
        prefill=rng.multinomial(60, rates / 2).astype(np.uint32),
        rates=rates,
    )


def outputs_of(figure: Figure) -> dict[str, Any]:
    """What the figure's pieces could have returned."""
    return {name: _returned(piece) for name, piece in figure.pieces().items()}


def _returned(piece: Piece) -> Any:
    return _MADE[piece.function](piece)


def _served(piece: Piece) -> dict[str, float]:
    """A little different for each setting and seed; locality_band is a tenth better than the others."""
    noise = int(hashlib.sha256(repr(sorted(piece.settings.items())).encode()).hexdigest()[:6], 16) / 16**6
    gain = 0.9 if piece.settings["router"] == "locality_band" else 1.0
    return {
        "tpot_p50_ms": gain * (10 + 0.1 * noise),
        "tpot_p99_ms": gain * (12 + 0.1 * noise),
        "ttft_p50_ms": 30 + noise,
        "active_experts": gain * (60 + noise),
        "batch": 20 + noise,
        "busiest": 1.2 + 0.1 * noise,
    }


FACTS = {"model": "made-up", "evidence": "trace", "source": "made up"}
SHAPE = {
    "domains": list(DOMAINS),
    "layer": 1,
    "deviation": [[0.5, -0.5], [-0.5, 0.5]],
    "cosine": [[1.0, 0.4], [0.4, 1.0]],
}
CHANGE = {"domains": 2, "same": 8.0, "mixed": 10.0, "change": (-20.0, -21.0, -19.0)}
FIT = {"a0": 20.0, "a1": 2.0, "b": 0.1, "r2": 0.99}
POINTS = {"16": 50.0, "64": 150.0, "128": 250.0}
LIVE_ROWS = [
    {"policy": name, "active_experts": 20.0, "mean_batch": 8.0} for name in ("round_robin", "locality_band")
]
BENCHMARK = {
    "evidence": "engine",
    "settings": {"repeats": 1},
    "against_mixed": {"round_robin": 0.0, "locality_band": -0.2},
    "rows": LIVE_ROWS,
    "rounds": 10,
    "prefill": {"512": {"difference_ms": {"p50": 0.4}}},
    "memory": {"Qwen3-30B-A3B": {"share": 0.004}},
    "added_ms": {"router": {"p50": 1.0}},
    "ttft_ms": {"capture": {"p50": 50.0}},
}
_MADE: dict[Any, Any] = {
    serving.served: _served,
    mixes.mix: lambda _: {"en": 60.0, "zh": 40.0},
    locality.domains: lambda _: {
        **FACTS,
        **SHAPE,
        "requests": 24,
        "within": 0.9,
        "between": 0.5,
        "gap": (0.4, 0.3, 0.5),
    },
    locality.language_domains: lambda _: {"model": "made-up", "evidence": "trace", **SHAPE},
    locality.batches: lambda _: {**FACTS, "sizes": {"8": CHANGE, "32": CHANGE}},
    locality.language_batches: lambda _: {**FACTS, "sizes": {"32": CHANGE}},
    locality.prediction: lambda _: {
        **FACTS,
        "pooled": 0.8,
        "by_domain": {"code": 0.7, "law": 0.9},
        "by_request": 0.6,
        "points": [[1.0, 1.1], [0.5, 0.4]],
    },
    latency.forced: lambda _: {
        "device": "a GPU",
        "model": "made-up",
        "by_tokens": dict.fromkeys(("32", "64", "128"), POINTS),
        **FIT,
    },
    latency.balanced: lambda _: {
        "device": "a GPU",
        "model": "made-up",
        "dtype": "bf16",
        "points": [(16, 50.0), (128, 235.0)],
        **FIT,
    },
    signatures.transformations: lambda _: {
        **FACTS,
        "requests": 24,
        "rho": {"idf": 0.7, "counts": 0.6, "log": 0.65, "binary": None},
    },
    gated.gated_transformations: lambda _: {
        **FACTS,
        "requests": 24,
        "rho": {"idf": 0.7, "counts": 0.6, "gates": 0.55, "gates_idf": 0.5},
    },
    signatures.layers: lambda _: {
        **FACTS,
        "transformation": "idf",
        "layers": 3,
        "order": [1, 0, 2],
        "curve": [0.6, 0.7, 0.65],
        "kept": 2,
        "held_out": {"kept": 0.7, "all": 0.6},
    },
    signatures.clusters: lambda _: {
        **FACTS,
        "workers": 2,
        "points": [[0.0, 1.0], [1.0, 0.0]],
        "labels": list(DOMAINS),
        "clusters": [0, 1],
        "centroids": [[0.0, 1.0], [1.0, 0.0]],
        "explained": (0.5, 0.3),
        "sizes": [1, 1],
        "purity": 1.0,
        "by_chance": 0.5,
    },
    benchmarks.kept: lambda _: BENCHMARK,
    benchmarks.decision_us: lambda _: {"whole_us": 300.0},
    benchmarks.fit_s: lambda _: {"seconds": 2.0, "requests": 1000, "workers": 16},
}
