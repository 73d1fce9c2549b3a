"""Lines that are appended to a file: the whole line or nothing of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eldr.metrics.lines import append_line

Write = Callable[[int, bytes], int]


@pytest.fixture
def file(tmp_path: Path) -> int:
    return os.open(tmp_path / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def after(monkeypatch: pytest.MonkeyPatch, also: Callable[[], object]) -> None:
    """Let a write take five bytes, as on a disk that becomes full, and do something more."""
    write = os.write

    def short(file: int, data: bytes) -> int:
        written = write(file, data[:5])
        also()
        return written

    monkeypatch.setattr("eldr.metrics.lines.os.write", short)


def test_a_disk_that_becomes_full_leaves_whole_lines(
    file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_line(file, b"first line\n")
    with monkeypatch.context() as full:
        after(full, also=lambda: None)
        with pytest.raises(OSError, match="No space left"):
            append_line(file, b"second line\n")
    append_line(file, b"third line\n")
    assert (tmp_path / "lines").read_bytes() == b"first line\nthird line\n"


def test_what_another_process_wrote_since_stays(
    file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.open(tmp_path / "lines", os.O_WRONLY | os.O_APPEND)
    write = os.write
    with monkeypatch.context() as full:
        after(full, also=lambda: write(other, b"of another\n"))
        with pytest.raises(OSError, match="No space left"):
            append_line(file, b"second line\n")
    assert (tmp_path / "lines").read_bytes() == b"secon" + b"of another\n"
