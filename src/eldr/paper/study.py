"""The command of a study: run what is missing, keep the numbers as JSON, make plot and page from these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import click
import msgspec
from rich.console import Console

from eldr.errors import EldrError
from eldr.files import replacing
from eldr.paper.pieces import Piece
from eldr.paper.runner import run_pieces

Saved = TypeVar("Saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[Saved]):
    """name: of its files in docs/bench and of the folder of kept runs. page: its file in docs.

    pieces: its runs, which are kept in a folder; collect: what they found; saved: its type, for reading.
    """

    name: str
    page: str
    saved: type[Saved]
    pieces: Callable[[str], Sequence[Piece]]
    collect: Callable[[Path], Saved]
    draw: Callable[[Saved, Path], None]
    write_page: Callable[[Saved, Path], None]

    def run(self, jobs: int, kept: Path, console: Console) -> Saved:
        """Run what the folder lacks. EldrError where a run fails."""
        kept.mkdir(parents=True, exist_ok=True)
        failed = run_pieces(self.pieces(str(kept)), kept, jobs, console)
        if failed:
            raise EldrError(f"{len(failed)} runs failed, the first: {next(iter(failed.values()))}")
        return self.collect(kept)

    def write(self, docs: Path) -> None:
        """Plot and page from the JSON file."""
        file = docs / "bench" / f"{self.name}.json"
        saved = msgspec.json.decode(file.read_bytes(), type=self.saved)
        self.draw(saved, file.with_suffix(".png"))
        self.write_page(saved, docs / self.page)

    def command(self) -> click.Command:
        """`python -m` of the study."""

        @click.command(help=f"Run the study and write docs/{self.page}; what is done is kept.")
        @click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes.")
        @click.option(
            "--docs",
            default=Path("docs"),
            show_default=True,
            type=click.Path(file_okay=False, path_type=Path),
        )
        @click.option(
            "--keep",
            default=Path("build") / self.name,
            show_default=True,
            type=click.Path(file_okay=False, path_type=Path),
            help="Where finished runs are kept, so that a study that was stopped goes on.",
        )
        @click.option(
            "--what",
            default="all",
            show_default=True,
            type=click.Choice(["all", "page"]),
            help="page: only plot and page, from the JSON file.",
        )
        def main(jobs: int, docs: Path, keep: Path, what: str) -> None:
            if what == "all":
                found = self.run(jobs, keep, Console(highlight=False))
                with replacing(docs / "bench" / f"{self.name}.json") as file:
                    file.write(msgspec.json.encode(found) + b"\n")
            self.write(docs)

        return main
