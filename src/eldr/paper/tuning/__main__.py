"""python -m eldr.paper.tuning: run the loops that are missing, then write JSON, plot and page."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from eldr.bench.machine import describe_machine
from eldr.paper.beyond.cases import CASES, LIGHT, Case
from eldr.paper.pieces import Piece
from eldr.paper.study import Study
from eldr.paper.tuning.loop import measured
from eldr.paper.tuning.page import write_page
from eldr.paper.tuning.plot import draw
from eldr.paper.tuning.results import Run, Saved
from eldr.program import run

PLAN = {0: ["default", "tau 0"], 1: ["default", "tau 2"]}
"""Seed -> starts."""

NOISY = tuple((Case("batch-led", 8, LIGHT), noise) for noise in (0.1, 0.3))
"""Cases where the cost is not what it is taken for, and the noise of single requests hides that."""


def pieces(kept: str) -> list[Piece]:
    """One a case and seed."""
    return [
        Piece(
            measured,
            {
                "source": case.source,
                "workers": case.workers,
                "batch": case.batch,
                "noise": noise,
                "seed": seed,
                "starts": starts,
                "kept": kept,
            },
        )
        for seed, starts in PLAN.items()
        for case, noise in (*((case, 0.0) for case in CASES), *NOISY)
    ]


def collect(kept: Path) -> Saved:
    """All runs, which must be there."""
    return Saved(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        runs=[msgspec.convert(piece.load(kept), Run) for piece in pieces(str(kept))],
    )


STUDY = Study(
    name="tuning",
    page="tuning.md",
    saved=Saved,
    pieces=pieces,
    collect=collect,
    draw=draw,
    write_page=write_page,
)

if __name__ == "__main__":
    run(STUDY.command())
