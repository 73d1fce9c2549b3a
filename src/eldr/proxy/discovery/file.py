"""The workers of the configuration file, read again when it changes and on SIGHUP."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from eldr.config import ROLES, Config
from eldr.proxy.discovery.source import Wanted

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""How often the file is looked at."""


def workers_of(config: Config) -> tuple[Wanted, ...]:
    """The workers that a configuration lists."""
    return tuple(Wanted(role, one.url, one.name) for role in ROLES for one in getattr(config, role))


@dataclass(frozen=True, slots=True)
class Reload:
    """How to read the configuration again: the file, and what reads it as at the start, flags over it.

    load raises ConfigError for a bad file.
    """

    path: str
    load: Callable[[], Config]


class FileSource:
    """Follows a file. config: what is in force."""

    name = "file"

    def __init__(self, reload: Reload, config: Config) -> None:
        self._path, self._load, self._config = reload.path, reload.load, config
        self._seen = self._stamp()
        self.asked = asyncio.Event()
        """Set it to have the file read now."""

    async def sets(self) -> AsyncIterator[tuple[Wanted, ...]]:
        """The file's workers, whenever it has changed or someone asked."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.asked.wait(), INTERVAL_S)
            stamp = self._stamp()
            if self.asked.is_set() or stamp != self._seen:
                self.asked.clear()
                self._seen = stamp
                yield self._read()

    def _read(self) -> tuple[Wanted, ...]:
        config = self._load()
        self._warn_of_more_than_workers(config)
        return workers_of(config)

    def _warn_of_more_than_workers(self, config: Config) -> None:
        changed = [
            key
            for key, value in msgspec.structs.asdict(config).items()
            if key not in ROLES and value != getattr(self._config, key)
        ]
        if changed:
            log.warning("%s: %s changed, which takes a restart", self._path, ", ".join(changed))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
