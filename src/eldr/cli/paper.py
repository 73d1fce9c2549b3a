"""`eldr paper`: the figures and tables of the paper, made again."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eldr.errors import EldrError
from eldr.paper.beyond import build as beyond
from eldr.paper.build import load, make, pieces_of, write
from eldr.paper.figure import Figure
from eldr.paper.figures import FIGURES
from eldr.paper.page import NOT_YET, write_page
from eldr.paper.runner import run_pieces
from eldr.paper.style import plotter
from eldr.paper.verdict import verdict

console = Console(highlight=False, soft_wrap=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="all|list|page|beyond|FIGURE...")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option(
    "--docs",
    default=Path("docs"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where reproduction.md and paper/ go; of beyond, policies.md and bench/.",
)
@click.option(
    "--keep",
    default=Path("build/paper"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where finished pieces are kept, so that a run that was stopped goes on.",
)
def command(names: tuple[str, ...], jobs: int, docs: Path, keep: Path) -> None:
    """Compute and draw figures of the paper, and write docs/reproduction.md.

    FIGURE is fig1, table2, overhead ...; `list` names them, `page` only writes the page again. `beyond` is
    the suite that policies are chosen on, and docs/policies.md; `all` leaves it out.
    """
    if names == ("beyond",):
        beyond.compute(keep, jobs, console)
        beyond.save(keep, docs)
        beyond.show(docs)
        console.print(f"wrote {docs / beyond.PAGE}")
        return
    figures = [FIGURES[name] for name in FIGURES.names()]
    if names == ("list",):
        console.print(_table(figures, docs / "paper"), soft_wrap=False)
        return
    if names != ("page",):
        chosen = figures if names == ("all",) else [FIGURES[name] for name in names]
        _make(chosen, jobs, docs / "paper", keep)
    write_page(figures, docs / "paper", docs / "reproduction.md")
    console.print(f"wrote {docs / 'reproduction.md'}")


def _make(figures: list[Figure], jobs: int, folder: Path, keep: Path) -> None:
    """Make the figures; one that cannot be made is named, and the others are made all the same."""
    if any(figure.draw for figure in figures):
        plotter()  # without matplotlib it fails here, before the work
    reasons = set(run_pieces(pieces_of(figures), keep, jobs, console).values())
    for reason in sorted(reasons):
        console.print(f"[red]failed[/] {reason}")
    for figure in figures:
        try:
            saved = make(figure, keep)
        except EldrError as error:
            console.print(f"[red]{figure.id}[/] not made: {error}")
            continue
        write(figure, saved, folder)
        console.print(f"{figure.id} {verdict(saved.result.findings, figure.claims)}")


def _table(figures: list[Figure], folder: Path) -> Table:
    table = Table("name", "what", "verdict", box=None, pad_edge=False)
    for figure in figures:
        saved = load(figure, folder)
        own = NOT_YET if saved is None else verdict(saved.result.findings, figure.claims)
        table.add_row(figure.id, figure.title, own)
    return table
