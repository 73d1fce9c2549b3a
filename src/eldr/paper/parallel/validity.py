"""The simulator's active experts of the busiest rank against a count of recorded ids."""

from typing import Any

import numpy as np

from eldr.paper.parallel.worlds import load
from eldr.paper.pieces import Piece
from eldr.sim import Placement, Rates, Recorded, balanced
from eldr.traces.recorded import gpt_oss_20b

RANKS = ((4, 0), (4, 8), (8, 8))
"""Ranks, and redundant experts of 32."""

BATCHES = (4, 16, 40)
DRAWS, STEPS = 25, 64


def validity() -> Piece:
    """The comparison as a piece."""
    return Piece(compared, {}, "validity")


def compared() -> list[dict[str, Any]]:
    """Active experts of the busiest rank of mixed batches of GPT-OSS-20B's requests.

    counted: of each step's ids; expected: by the requests' rates; of_means: the maximum over ranks of the
    expected numbers.
    """
    traces = gpt_oss_20b()
    assert traces.ids is not None
    rates = np.minimum(traces.decode_rates(), 1)
    tokens = load(rates, traces.ids.tokens())
    sources = Recorded(list(traces.ids), traces.num_experts), Rates(rates)
    placements = [
        (name, placement)
        for ranks, redundant in RANKS
        for name, placement in (
            ("linear", Placement.linear(tokens.shape[0], tokens.shape[1], ranks, redundant)),
            ("balanced", balanced(tokens, ranks, redundant)),
        )
    ]
    return [
        _row(name, placement, batch, rates, sources) for name, placement in placements for batch in BATCHES
    ]


def _row(name: str, placement: Placement, batch: int, rates: Any, sources: Any) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    counted, expected, of_means = [], [], []
    for _ in range(DRAWS):
        rows = rng.choice(len(rates), batch, replace=False).tolist()
        ids, chances = (source.open(placement) for source in sources)
        for row in rows:
            ids.add(row, row)
            chances.add(row, row)
        counted.append(ids.active(STEPS).mean())
        expected.append(chances.active(1))
        chance = 1 - np.prod(1 - rates[rows] / placement.replicas, axis=0)
        of_means.append(placement.by_rank(chance).sum(axis=2).max(axis=1).mean())
    return {
        "placement": name,
        "ranks": placement.ranks,
        "redundant": placement.slots.shape[1] - placement.shape[1],
        "batch": batch,
        "counted": float(np.mean(counted)),
        "expected": float(np.mean(expected)),
        "of_means": float(np.mean(of_means)),
    }
