"""Runs pieces in a few processes, and says how far it is."""

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from eldr.errors import EldrError
from eldr.paper.pieces import Piece

POLL_S = 0.5
Job = tuple[Piece, Path]
"""A piece and the file of its result, whose name is not made again in the process that computes it."""

Failures = dict[str, str]
"""Why a piece has no result, by its key."""


def run_pieces(pieces: Iterable[Piece], folder: Path, jobs: int, console: Console) -> Failures:
    """Compute the pieces that the folder lacks. Pieces of one group stay together; one that fails stops
    none."""
    wanted = {piece.key: piece for piece in pieces}
    missing = [piece for piece in wanted.values() if not piece.path(folder).exists()]
    groups = _groups(missing, folder)
    console.print(f"{len(wanted)} pieces, {len(wanted) - len(missing)} of them kept in {folder}")
    if not missing:
        return {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core; read by numpy when a worker starts
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(run_group, group) for group in groups]
        try:
            _watch(futures, [path for group in groups for _, path in group], console)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {key: message for future in futures for key, message in future.result().items()}


def run_group(work: Sequence[Job]) -> Failures:
    """Run pieces in turn, in this process; returns the expected errors of those that failed."""
    failed: Failures = {}
    for piece, path in work:
        if path.exists():  # another run of `eldr paper` was faster
            continue
        try:
            piece.run(path)
        except EldrError as error:
            failed[path.stem] = str(error)
    return failed


def _groups(pieces: Sequence[Piece], folder: Path) -> list[list[Job]]:
    groups: dict[str, list[Job]] = {}
    for piece in pieces:
        groups.setdefault(piece.group or piece.key, []).append((piece, piece.path(folder)))
    return list(groups.values())


def _watch(futures: Sequence[Future[Failures]], paths: Sequence[Path], console: Console) -> None:
    """Show how many results there are until all futures are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("computing", total=len(paths))
        waiting: set[Future[Failures]] = set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=POLL_S)
            bar.update(task, completed=sum(path.exists() for path in paths))
