import errno
import os
from pathlib import Path

import pytest

from eldr.errors import ConfigError
from eldr.files import replacing


def test_replaces_with_the_usual_mode(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.bin"
    for content in (b"old", b"new"):
        with replacing(path) as file:
            file.write(content)
    assert path.read_bytes() == b"new"
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert os.listdir(path.parent) == ["b.bin"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"), replacing(tmp_path / "file" / "x"):
        pass


def test_folders_and_devices_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(ConfigError, match="no regular file"), replacing(path):
            pass
    assert os.listdir(tmp_path) == ["fifo"]


def test_a_full_disk_is_one_expected_error_that_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "kept"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot write .*kept: No space left"), replacing(path):
        pass
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]
