"""python -m eldr.paper.parallel: run what is missing of the study, then write JSON, plot and page."""

from pathlib import Path

import click
import msgspec
from rich.console import Console

from eldr.errors import EldrError
from eldr.files import replacing
from eldr.paper.parallel.cases import pieces
from eldr.paper.parallel.page import draw, write_page
from eldr.paper.parallel.results import Saved, collect
from eldr.paper.runner import run_pieces
from eldr.program import run


@click.command()
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option(
    "--docs", default=Path("docs"), show_default=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--keep",
    default=Path("build/parallel"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where finished runs are kept, so that a study that was stopped goes on.",
)
@click.option("--what", default="all", show_default=True, type=click.Choice(["all", "page"]))
def main(jobs: int, docs: Path, keep: Path, what: str) -> None:
    """Measure what locality saves under expert parallelism, and write docs/expert-parallelism.md.

    --what page: from expert_parallelism.json.
    """
    file = docs / "bench" / "expert_parallelism.json"
    if what == "all":
        keep.mkdir(parents=True, exist_ok=True)
        failed = run_pieces(pieces(str(keep)), keep, jobs, Console(highlight=False))
        if failed:
            raise EldrError(f"{len(failed)} runs failed, the first: {next(iter(failed.values()))}")
        with replacing(file) as out:
            out.write(msgspec.json.format(msgspec.json.encode(collect(keep)), indent=1))
    saved = msgspec.json.decode(file.read_bytes(), type=Saved)
    draw(saved, docs / "bench" / "expert_parallelism.png")
    write_page(saved, docs / "expert-parallelism.md")


if __name__ == "__main__":
    run(main)
