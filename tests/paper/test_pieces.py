"""Results of pieces are kept, and never taken for those of other settings or other code."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eldr.errors import ConfigError
from eldr.paper import pieces
from eldr.paper.pieces import Piece, code_version
from eldr.paper.runner import run_group, run_pieces


def double(*, value: int) -> dict[str, int]:
    return {"twice": 2 * value}


def failing(*, value: int) -> Any:
    raise ConfigError(f"no {value} here")


def test_a_result_is_kept_and_read_again(tmp_path: Path) -> None:
    piece = Piece(double, {"value": 2})
    piece.run(piece.path(tmp_path))
    assert piece.load(tmp_path) == {"twice": 4}


def test_keys_follow_function_settings_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = Piece(double, {"value": 2, "other": 1})
    assert piece.key == Piece(double, {"other": 1, "value": 2}, "another group").key
    assert piece.key != Piece(double, {"value": 3, "other": 1}).key
    assert piece.key != Piece(failing, {"value": 2, "other": 1}).key
    before = piece.key
    monkeypatch.setattr(pieces, "code_version", lambda _: "changed")
    assert piece.key != before


def test_code_is_what_a_module_reaches() -> None:
    def reached(module: str) -> set[str]:
        return {path.relative_to(pieces.PACKAGE).as_posix() for path in pieces._reachable(module)}

    serving = reached("eldr.paper.measure.serving")
    assert {
        "sim/decode.py",
        "policy/jsq.py",
        "sim/costs/mi300x-qwen3-30b-a3b.json",
        "signature/layers.py",
    } <= serving
    assert not {"paper/page.py", "paper/figures/fig04_batches.py", "proxy/app.py"} & serving
    assert "sim/decode.py" not in reached("eldr.paper.measure.latency")
    assert code_version("eldr.paper.measure.serving") != code_version("eldr.paper.measure.latency")


def test_a_piece_that_fails_stops_no_other(tmp_path: Path) -> None:
    work = [
        (piece, piece.path(tmp_path)) for piece in (Piece(failing, {"value": 7}), Piece(double, {"value": 1}))
    ]
    assert list(run_group(work).values()) == ["no 7 here"]
    assert [path.exists() for _, path in work] == [False, True]


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    piece = Piece(double, {"value": 1})
    piece.path(tmp_path).write_text('{"twice": "kept"}')
    assert run_pieces([piece, piece], tmp_path, 1, Console(quiet=True)) == {}
    assert piece.load(tmp_path) == {"twice": "kept"}
