"""Active experts: the expected union against counts of real batches."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from eldr.sim import Rates, Recorded
from eldr.traces import ExpertTraces, recorded

BATCHES = (4, 8, 16, 32, 64)
DRAWS = 300
"""Batches of each size."""


class ActiveCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of one size. members: "mixed", or "same label".

    counted: distinct experts of a token of each request, mean over batches and layers; expected: by rates.
    error: expected / counted - 1. batch_error: mean |error| of a single step of a single batch.
    """

    model: str
    members: str
    batch: int
    counted: float
    expected: float
    error: float
    batch_error: float


def check_active(folder: Path) -> list[ActiveCheck]:
    """Both recorded models, batches of any and of one label."""
    traces = (recorded.gpt_oss_20b(folder), recorded.deepseek_v2_lite(folder))
    return [check for one in traces for check in _check(one)]


def _check(traces: ExpertTraces) -> Iterator[ActiveCheck]:
    assert traces.ids is not None
    rng = np.random.default_rng(0)
    rates = Rates(traces.decode_rates())
    ids = Recorded(list(traces.ids), traces.num_experts)
    groups = [np.flatnonzero(traces.label == label) for label in np.unique(traces.label)]
    for members, pools in (("mixed", [np.arange(len(traces))]), ("same label", groups)):
        for batch in BATCHES:
            large = [pool for pool in pools if len(pool) >= batch]
            if large:
                drawn = [
                    rng.choice(large[rng.integers(len(large))], batch, replace=False) for _ in range(DRAWS)
                ]
                pairs = np.array([_active(rates, ids, rows, rng) for rows in drawn])
                yield _summary(traces.model, members, batch, pairs)


def _active(rates: Rates, ids: Recorded, rows: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Counted at one random token of each request, and expected."""
    expected = rates.open()
    positions = rng.integers(0, ids.lengths[rows])
    masks = ids.masks(rows, positions)
    union = np.unpackbits(np.bitwise_or.reduce(masks, axis=0), axis=1)
    for request, kind in enumerate(rows):
        expected.add(request, int(kind))
    return float(union.sum(axis=1).mean()), expected.active(1)


def _summary(model: str, members: str, batch: int, pairs: np.ndarray) -> ActiveCheck:
    counted, expected = pairs.mean(axis=0)
    return ActiveCheck(
        model=model,
        members=members,
        batch=batch,
        counted=float(counted),
        expected=float(expected),
        error=float(expected / counted - 1),
        batch_error=float(np.abs(pairs[:, 1] / pairs[:, 0] - 1).mean()),
    )
