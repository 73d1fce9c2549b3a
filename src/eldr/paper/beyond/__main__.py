"""python -m eldr.paper.beyond: the same as `eldr paper beyond`, or a part of it."""

from pathlib import Path

import click
from rich.console import Console

from eldr.paper.beyond.build import compute, save, show
from eldr.program import run

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option("--docs", default=Path("docs"), show_default=True, type=FOLDER)
@click.option(
    "--keep",
    default=Path("build/paper"),
    show_default=True,
    type=FOLDER,
    help="Where finished runs are kept, so that a suite that was stopped goes on.",
)
@click.option("--what", default="all", show_default=True, type=click.Choice(["all", "kept", "page"]))
def main(jobs: int, docs: Path, keep: Path, what: str) -> None:
    """Run the suite that policies are chosen on, and write docs/policies.md.

    --what kept: from the runs that there are, with the rules that are complete; page: from beyond.json.
    """
    if what == "all":
        compute(keep, jobs, Console(highlight=False))
    if what != "page":
        save(keep, docs)
    show(docs)


if __name__ == "__main__":
    run(main)
