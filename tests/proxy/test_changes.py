"""What the processes of one router tell each other of their workers."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest

from eldr.proxy.admin import create_admin_app
from eldr.proxy.changes import FILE, Change, Changes
from support.mock_engine import engines
from support.stack import aiohttp_served, stack

KEY = {"Authorization": "Bearer key"}


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_change_that_cannot_be_read_keeps_no_other_from_being_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack(decode=3) as s:
        first, other = Changes(tmp_path), Changes(tmp_path)
        first.write(Change("remove", "decode", s.decode[0].url))
        with (tmp_path / FILE).open("ab") as file:
            file.write(b'{"do":"remove","role":"de{"do":"add"}\n')
        first.write(Change("remove", "decode", s.decode[1].url))
        await other.catch_up(s.app.membership)
        assert [worker.id for worker in s.app.membership.workers("decode")] == ["d2"]
    assert "cannot be read" in caplog.text


async def test_on_a_full_disk_a_change_is_refused_and_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = Changes(tmp_path)
    async with (
        stack() as s,
        engines(1, s.prefill[0].blocks) as (new,),
        aiohttp_served(create_admin_app(s.app.membership, "key", changes)) as url,
        aiohttp.ClientSession(url, headers=KEY) as http,
    ):

        async def asked(method: str, path: str, **body: Any) -> int:
            async with http.request(method, path, json=body or None) as answer:
                error = (await answer.json())["error"] if answer.status >= 400 else {}
                assert "No space left" in error.get("message", "No space left")
                return answer.status

        async def states() -> dict[str, str]:
            return {one.name: one.state for one in s.app.membership.snapshot()}

        before = await states()
        with monkeypatch.context() as disk:
            disk.setattr("eldr.proxy.changes.append_line", full)
            assert await asked("POST", "/workers", role="decode", url=new.url, name="new") == 503
            assert await asked("POST", "/workers/d0/drain") == 503
            assert await asked("DELETE", "/workers/d1") == 503
        async with asyncio.timeout(20):
            while "new" in await states():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await states() == before
        assert await asked("POST", "/workers", role="decode", url=new.url, name="new") == 201
