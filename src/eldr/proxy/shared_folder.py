"""The folder that the processes of one router share, locked as long as one of them lives.

systemd's cleaner of temporary files leaves alone what is locked; a router that starts removes what nobody
holds any more.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "eldr-metrics-"


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder, removed in the end; those that killed routers left are removed now."""
    _remove_stale()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        lock = hold(Path(name))
        try:
            yield Path(name)
        finally:
            os.close(lock)


def hold(folder: Path) -> int:
    """Make the folder if something removed it, and lock it until the descriptor is closed everywhere."""
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _remove_stale() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or held
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
