"""Runs the suite, keeps what it found as JSON, and writes the plot and the page."""

from pathlib import Path

import msgspec
from rich.console import Console

from eldr.errors import EldrError
from eldr.files import replacing
from eldr.paper.beyond.page import write_page
from eldr.paper.beyond.pairs import embedded_pairs
from eldr.paper.beyond.plot import draw
from eldr.paper.beyond.results import Saved, collect
from eldr.paper.beyond.suite import Runs, pieces
from eldr.paper.beyond.worlds import PAIRS
from eldr.paper.runner import run_pieces
from eldr.paper.style import plotter

PAGE = "policies.md"


def compute(keep: Path, jobs: int, console: Console) -> None:
    """Run what the folder lacks, with a progress bar. Raises EldrError where a run failed."""
    plotter()  # without matplotlib it fails here, before the work
    keep.mkdir(parents=True, exist_ok=True)
    embedded_pairs(keep / PAIRS)  # before there are processes that would all make it
    failed = run_pieces(pieces(keep), keep, jobs, console)
    if failed:
        raise EldrError(f"{len(failed)} runs failed, the first: {next(iter(failed.values()))}")


def save(keep: Path, docs: Path) -> None:
    """Write docs/bench/beyond.json from the kept runs, with the rules that are complete."""
    with replacing(_file(docs)) as out:
        out.write(msgspec.json.format(msgspec.json.encode(collect(Runs(keep))), indent=1))


def show(docs: Path) -> None:
    """Write the plot and the generated parts of the page from docs/bench/beyond.json."""
    saved = msgspec.json.decode(_file(docs).read_bytes(), type=Saved)
    draw(saved, docs / "bench" / "beyond.png")
    write_page(saved, docs / PAGE)


def _file(docs: Path) -> Path:
    return docs / "bench" / "beyond.json"
