"""The folder in which the processes of a router count their metrics together."""

import asyncio
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from eldr.metrics.shared import FILE_BYTES
from support.processes import BODY, live, running, waiting
from support.serving import ELDR
from support.waiting import HANG_S, until


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Path]]:
    """What is there, by pattern, of what the routers of a test put into TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return lambda pattern: list(tmp_path.glob(pattern))


async def test_a_folder_that_a_killed_router_left_is_removed_by_the_next_and_no_other(
    found: Callable[[str], list[Path]],
) -> None:
    async with running() as s:
        (old,) = found("*")
        left = s.children()
        s.process.kill()
        await until(lambda: not any(map(live, left)))
    async with running():
        (new,) = found("*")
        assert new != old
        async with running():
            assert new in found("*")
            assert len(found("*")) == 2


async def test_a_process_makes_the_folder_again_that_something_removed(
    found: Callable[[str], list[Path]],
) -> None:
    async with running() as s:
        (folder,) = found("*")
        shutil.rmtree(folder)
        for child in s.children():
            os.kill(child, signal.SIGKILL)
        for _ in range(2):
            await s.line("listening on")
        assert [(made, made.stat().st_mode & 0o777) for made in found("*")] == [(folder, 0o700)]
        await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        assert await s.metric("eldr_requests_total", outcome="ok") == 8


def compressed(folder: Path) -> bool:
    """Do zeros take less room in a folder than their number? Then its files cannot show what they have."""
    with (folder / "zeros").open("wb") as file:
        file.write(bytes(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_blocks * 512 < FILE_BYTES


async def test_metrics_have_their_room_from_the_start(
    found: Callable[[str], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if compressed(tmp_path_factory.mktemp("compressed")):
        pytest.skip("the file system compresses")
    async with running() as s:
        await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        files = [file.stat() for file in found("*/*.db")]
    assert [file.st_size for file in files] == [FILE_BYTES] * 6
    assert all(file.st_blocks * 512 >= file.st_size for file in files)


async def test_no_room_for_metrics_is_one_line(found: Callable[[str], list[Path]], tmp_path: Path) -> None:
    command = shlex.join([*ELDR, *waiting()])
    process = await asyncio.create_subprocess_shell(
        f"ulimit -f 100; exec {command}", stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), HANG_S)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    folder = rf"{tmp_path}/eldr-metrics-\w+"
    expected = rf"eldr: cannot count metrics in {folder} \(from TMPDIR\): File too large\n"
    assert re.fullmatch(expected, errors.decode().splitlines(keepends=True)[-1])
    assert process.returncode == 1
    assert found("*") == []
