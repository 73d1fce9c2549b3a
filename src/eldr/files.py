"""Writing files so that a reader sees the old content or the new, never a part."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from eldr.errors import ConfigError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place, synced to disk, when the block ends well.

    After an error in the block nothing is left behind. Raises ConfigError when the folder cannot be written,
    the disk is full, or `path` is a folder or a device, which must not be replaced.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot write {path}: it is no regular file; choose another output file")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with _removed_after_an_error(name):
            with os.fdopen(handle, "wb") as file:
                yield cast(BinaryIO, file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write {path}: {reason}; choose another output file") from error


@contextmanager
def _removed_after_an_error(name: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
