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
