"""What was asked for by the admin API, for the other processes: a file of JSON lines that all of them follow.

The first process answers the API, changes its own workers at once and writes the change down; the others see
it within POLL_S. A process that takes the place of a dead one does what was asked for before it serves.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from eldr.errors import ConfigError
from eldr.metrics.lines import append_line
from eldr.proxy.membership import Membership, Seen

log = logging.getLogger(__name__)

Did = Literal["add", "drain", "remove"]

FILE = "changes.jsonl"
POLL_S = 0.1


class Change(msgspec.Struct, frozen=True):
    """One change. Role and URL say which worker; name and limit_s are what was asked for with it."""

    do: Did
    role: str
    url: str
    name: str | None = None
    limit_s: float | None = None


class Changes:
    """The changes in a folder that all processes have."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._read = 0
        self._adding: set[asyncio.Task[None]] = set()

    def write(self, change: Change) -> None:
        """Tell the other processes. Raises OSError where that cannot be done."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            append_line(file, msgspec.json.encode(change) + b"\n")
        finally:
            os.close(file)

    async def catch_up(self, membership: Membership) -> None:
        """Do what was asked for until now: of each worker the last, which is what holds."""
        last = {(change.role, change.url): change for change in self._news()}
        await self._do(last.values(), membership)

    async def follow(self, membership: Membership) -> None:
        """Do what is asked for, for ever."""
        while True:
            await self._do(self._news(), membership)
            await asyncio.sleep(POLL_S)

    def _news(self) -> list[Change]:
        """What was written since the last look, as whole lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines = file.read()
        except FileNotFoundError:
            return []
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        return [change for line in whole.splitlines() if (change := _read(line)) is not None]

    async def _do(self, changes: Iterable[Change], membership: Membership) -> None:
        for change in changes:
            seen = next((one for one in membership.snapshot() if _is(one, change)), None)
            if change.do == "add":
                if seen is None or seen.state == "draining":
                    await self._add(change, membership)
            elif seen is not None and change.do == "drain":
                membership.drain(seen.name, change.limit_s)
            elif seen is not None:
                membership.remove(seen.name)

    async def _add(self, change: Change, membership: Membership) -> None:
        """Add a worker. Its check, which may take long, keeps no other change waiting."""

        async def add() -> None:
            taken = change.name in {one.name for one in membership.snapshot()}
            try:
                await membership.add(change.role, change.url, None if taken else change.name)
            except ConfigError as error:
                log.error("a worker that was added in another process: %s", error)

        task = asyncio.create_task(add())
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)
        await asyncio.sleep(0)  # it is there from now on, though not yet checked


def _read(line: bytes) -> Change | None:
    try:
        return msgspec.json.decode(line, type=Change)
    except msgspec.DecodeError as error:  # one bad change must not end the following of all others
        log.error("a change of another process cannot be read: %s", error)
        return None


def _is(seen: Seen, change: Change) -> bool:
    return (seen.role, seen.url) == (change.role, change.url)
