"""python -m eldr.paper.beyond: run what is missing of the suite, then write JSON, plot and page."""

from pathlib import Path

import click
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
from eldr.program import run


@click.command()
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option(
    "--docs", default=Path("docs"), show_default=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--keep",
    default=Path("build/beyond"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where finished runs are kept, so that a suite that was stopped goes on.",
)
@click.option("--what", default="all", show_default=True, type=click.Choice(["all", "kept", "page"]))
def main(jobs: int, docs: Path, keep: Path, what: str) -> None:
    """Run the suite that policies are chosen on, and write docs/policies.md.

    --what kept: from the runs that there are, with the rules that are complete; page: from beyond.json.
    """
    file = docs / "bench" / "beyond.json"
    if what == "all":
        keep.mkdir(parents=True, exist_ok=True)
        embedded_pairs(keep / PAIRS)  # before there are processes that would all make it
        failed = run_pieces(pieces(keep), keep, jobs, Console(highlight=False))
        if failed:
            raise EldrError(f"{len(failed)} runs failed, the first: {next(iter(failed.values()))}")
    if what != "page":
        with replacing(file) as out:
            out.write(msgspec.json.format(msgspec.json.encode(collect(Runs(keep))), indent=1))
    saved = msgspec.json.decode(file.read_bytes(), type=Saved)
    draw(saved, docs / "bench" / "beyond.png")
    write_page(saved, docs / "policies.md")


if __name__ == "__main__":
    run(main)
