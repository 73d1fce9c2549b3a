"""Says what a long run is doing, on one line at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

Advance = Callable[[], None]


TABLE_WIDTH = 108


def wide_console() -> Console:
    """A console that cuts no table, whatever the terminal's width; long lines wrap in the terminal."""
    return Console(highlight=False, soft_wrap=True, width=max(Console().width, TABLE_WIDTH))


class Stages:
    """Numbers and shows the stages of a run. count: how many there will be."""

    def __init__(self, console: Console, count: int) -> None:
        self.console, self.count, self.number = console, count, 0

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """Show `title` while the block runs; call what it yields for each of `total` things done."""
        self.number += 1
        name = f"[{self.number}/{self.count}] {title}"
        if not self.console.is_terminal:  # a bar is only drawn once it is done
            self.console.print(f"  {name} ...", markup=False)
        columns = [SpinnerColumn(finished_text="✓"), TextColumn("{task.description}", markup=False)]
        if total is not None:
            columns.append(MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as bar:
            task = bar.add_task(name, total=total)
            yield lambda: bar.advance(task)
            bar.update(task, total=total or 1, completed=total or 1)
