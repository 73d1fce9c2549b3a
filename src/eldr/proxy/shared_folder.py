"""The folder that the processes of one router share, locked as long as one of them lives.

systemd's cleaner of temporary files leaves alone what is locked; a router that starts removes what nobody
holds any more.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from eldr.errors import EldrError

PREFIX = "eldr-metrics-"


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder, removed in the end; those that killed routers left are removed now. Raises EldrError."""
    _remove_stale()
    with ExitStack() as kept:
        try:
            folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
            kept.callback(os.close, hold(folder))
        except OSError as error:
            reason = error.strerror or error
            raise EldrError(f"cannot make a folder in {tempfile.gettempdir()} (TMPDIR): {reason}") from None
        yield folder


def hold(folder: Path) -> int:
    """Make the folder if something removed it, and lock it until the descriptor is closed everywhere."""
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _remove_stale() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or held
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
