"""What the project's own benchmarks measured on real engines, and short measurements of the router's own
work."""

import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from eldr.bench.decision import draw_counts
from eldr.bench.decision import measure as measure_decision
from eldr.errors import ConfigError
from eldr.paper.pieces import PACKAGE
from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import SignatureTransform

BENCH = PACKAGE.parents[1] / "docs" / "bench"


def digest(name: str) -> str:
    """A hash of a benchmark's file, for the settings of a piece that reads it; "" where there is none."""
    path = BENCH / name
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def kept(name: str, digest: str) -> Any:  # noqa: ARG001 - a piece is another one when the file is
    """A benchmark's file in docs/bench, without what fills it up. ConfigError where there is none."""
    path: Path = BENCH / name
    try:
        whole = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read docs/bench/{name} ({error}); `make help` names its benchmark"
        ) from None
    return {key: value for key, value in whole.items() if key != "different"}


def decision_us(workers: int, seed: int = 0) -> dict[str, float]:
    """Median times of one routing decision in the shape of Qwen3-30B-A3B, see eldr.bench.decision."""
    return measure_decision("locality_band", workers, np.random.default_rng(seed))


def fit_s(requests: int, workers: int, repeats: int = 3, seed: int = 0) -> dict[str, float]:
    """Seconds of CPU time (median) to make signatures of `requests` and to cluster them, in the shape of
    Qwen3-30B-A3B."""
    rng = np.random.default_rng(seed)
    counts = np.stack([draw_counts(rng) for _ in range(requests)])
    times = []
    for repeat in range(repeats):
        started = time.process_time()
        signatures = SignatureTransform("idf").fit(counts).transform_many(counts)
        BalancedKMeans(workers, seed=repeat).fit(signatures)
        times.append(time.process_time() - started)
    return {"seconds": statistics.median(times), "requests": requests, "workers": workers}
