"""python -m eldr.paper.tuning: run the loops that are missing, then write JSON, plot and page."""

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console

from eldr.bench.machine import describe_machine
from eldr.errors import EldrError
from eldr.files import replacing
from eldr.paper.beyond.cases import CASES
from eldr.paper.beyond.pairs import embedded_pairs
from eldr.paper.beyond.worlds import PAIRS
from eldr.paper.pieces import Piece
from eldr.paper.runner import run_pieces
from eldr.paper.tuning.loop import measured
from eldr.paper.tuning.page import write_page
from eldr.paper.tuning.plot import draw
from eldr.paper.tuning.results import Run, Saved
from eldr.program import run

PLAN = {0: ["default", "tau 0"], 1: ["default", "tau 2"]}
"""Seed -> starts."""


def pieces(kept: Path) -> list[Piece]:
    """One a case and seed."""
    return [
        Piece(
            measured,
            {
                "source": case.source,
                "workers": case.workers,
                "batch": case.batch,
                "seed": seed,
                "starts": starts,
                "kept": str(kept),
            },
        )
        for seed, starts in PLAN.items()
        for case in CASES
    ]


def collect(kept: Path) -> Saved:
    """The runs that are finished, as one file keeps them."""
    return Saved(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        runs=[msgspec.convert(piece.load(kept), Run) for piece in pieces(kept) if piece.path(kept).exists()],
    )


@click.command()
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option(
    "--docs", default=Path("docs"), show_default=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--keep",
    default=Path("build/beyond"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where finished runs are kept, so that one that was stopped goes on.",
)
@click.option("--what", default="all", show_default=True, type=click.Choice(["all", "kept", "page"]))
def main(jobs: int, docs: Path, keep: Path, what: str) -> None:
    """Test the router's self-tuning on simulated traffic, and write docs/tuning.md.

    --what kept: from the runs that there are; page: from tuning.json.
    """
    file = docs / "bench" / "tuning.json"
    if what == "all":
        keep.mkdir(parents=True, exist_ok=True)
        embedded_pairs(keep / PAIRS)
        failed = run_pieces(pieces(keep), keep, jobs, Console(highlight=False))
        if failed:
            raise EldrError(f"{len(failed)} runs failed, the first: {next(iter(failed.values()))}")
    if what != "page":
        with replacing(file) as out:
            out.write(msgspec.json.format(msgspec.json.encode(collect(keep)), indent=1))
    saved = msgspec.json.decode(file.read_bytes(), type=Saved)
    draw(saved, docs / "bench" / "tuning.png")
    write_page(saved, docs / "tuning.md")


if __name__ == "__main__":
    run(main)
