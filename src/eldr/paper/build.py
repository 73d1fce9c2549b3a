"""From pieces to saved results: JSON and plots, one set a figure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eldr.bench.machine import describe_machine
from eldr.errors import ConfigError, EldrError
from eldr.files import replacing
from eldr.paper.figure import Figure, Result
from eldr.paper.pieces import Piece
from eldr.paper.style import plotter


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A figure's file. created_at: UTC, ISO 8601. machine: see eldr.bench.machine."""

    id: str
    created_at: str
    machine: dict[str, Any]
    result: Result


def pieces_of(figures: Iterable[Figure]) -> list[Piece]:
    """All pieces of some figures; those that several need are there several times."""
    return [piece for figure in figures for piece in figure.pieces().values()]


def make(figure: Figure, kept: Path) -> Saved:
    """The result from the kept pieces. EldrError where one is missing."""
    return Saved(
        id=figure.id,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        result=figure.result(_outputs(figure.pieces(), kept)),
    )


def _outputs(pieces: Mapping[str, Piece], kept: Path) -> dict[str, Any]:
    lacking = [name for name, piece in pieces.items() if not piece.path(kept).exists()]
    if lacking:
        raise EldrError(f"{len(lacking)} of {len(pieces)} pieces have no result, the first is {lacking[0]!r}")
    return {name: piece.load(kept) for name, piece in pieces.items()}


def write(figure: Figure, saved: Saved, folder: Path) -> list[Path]:
    """Write ID.json and, where the figure is drawn, ID.png and ID.svg; returns the paths."""
    paths = [folder / f"{figure.id}.json"]
    with replacing(paths[0]) as file:
        file.write(msgspec.json.format(msgspec.json.encode(saved), indent=1))
    if figure.draw is None:
        return paths
    plt = plotter()
    drawing = figure.draw(plt, saved.result)
    for kind in ("png", "svg"):
        paths.append(folder / f"{figure.id}.{kind}")
        with replacing(paths[-1]) as file:
            drawing.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    plt.close(drawing)
    return paths


def load(figure: Figure, folder: Path) -> Saved | None:
    """What was saved for a figure, None where nothing was. ConfigError for a file of another version."""
    path = folder / f"{figure.id}.json"
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Saved)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not of this version ({error}); run `eldr paper {figure.id}`") from error
