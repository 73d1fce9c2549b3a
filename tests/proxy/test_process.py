"""`eldr serve` as a process: clear lines for what is wrong, a drain on SIGTERM."""

import asyncio
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest

from eldr.cli.serve import command
from eldr.errors import EldrError
from support.mock_engine import Faults, engines
from support.profiles import domain_profile
from support.serving import failure, free_port, line_of, serving, until_healthy, until_refused, workers
from support.stack import COMPLETIONS, right_text
from support.waiting import HANG_S, until, until_running

PROMPT = {"prompt": "a law text", "max_tokens": 5}


async def test_serve_routes_by_profile_streams_and_drains_on_sigterm(tmp_path: Path) -> None:
    domain_profile().save(tmp_path / "p.safetensors")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with engines(3, {}) as made:
        args = [*workers(made), "--policy", "locality_band", "--profile", str(tmp_path / "p.safetensors")]
        async with serving(*args, "--port", str(port), "--records", str(tmp_path / "r.jsonl")) as process:
            await until_healthy(url)
            made[2].faults.rest_until = nobody_can_connect = asyncio.Event()
            async with (
                aiohttp.ClientSession() as http,
                http.post(url + COMPLETIONS, json={**PROMPT, "stream": True}) as answer,
            ):
                assert answer.headers["x-eldr-decode-worker"] == "d1"
                first = await answer.content.readany()
                process.send_signal(signal.SIGTERM)
                await until_refused(url)
                nobody_can_connect.set()
                rest = await answer.read()
            text = (first + rest).decode()
            assert all(word in text for word in right_text(PROMPT, 5).split())
            assert text.endswith("data: [DONE]\n\n")
            await asyncio.wait_for(process.wait(), HANG_S)
            assert process.returncode == 0
    assert (tmp_path / "r.jsonl").read_text().count("\n") == 1


async def test_a_client_that_leaves_is_cancelled_at_once_under_uvloop_too() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        engines(2, {}) as made,
        serving(*workers(made), "--port", str(port), "--policy", "jsq") as process,
        aiohttp.ClientSession() as http,
    ):
        await until_healthy(url)
        made[1].faults.rest_until = asyncio.Event()
        async with http.post(url + COMPLETIONS, json={**PROMPT, "stream": True}) as answer:
            await answer.content.readany()
            assert made[1].running == 1
        await until(lambda: not made[1].running)
        made[1].faults = Faults(hang=True)
        request = asyncio.create_task(http.post(url + COMPLETIONS, json=PROMPT))
        await until_running(made[1])
        request.cancel()
        await until(lambda: not made[1].running)
        assert made[1].cancelled == 2
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANG_S) == 0


@contextmanager
def fewer_descriptors() -> Iterator[None]:
    """A soft limit that is lower than the hard one, for what starts meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_limit_of_descriptors_is_raised_and_sighup_without_a_file_ends_nothing() -> None:
    port = free_port()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with engines(2, {}) as made, AsyncExitStack() as stack:
        with fewer_descriptors():
            args = [*workers(made), "--port", str(port), "--policy", "jsq"]
            process = await stack.enter_async_context(serving(*args))
        await until_healthy(f"http://127.0.0.1:{port}")
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        process.send_signal(signal.SIGHUP)
        await line_of(process, "SIGHUP changes nothing")
        await until_healthy(f"http://127.0.0.1:{port}")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANG_S) == 0


async def test_a_notice_before_the_end_lets_load_balancers_turn_away(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with engines(2, {}) as made:
        (tmp_path / "eldr.yaml").write_text("drain_notice_s: 600\npolicy: {name: jsq}\n")
        args = [*workers(made), "--port", str(port), "--config", str(tmp_path / "eldr.yaml")]
        async with serving(*args) as process, aiohttp.ClientSession() as http:
            await until_healthy(url)
            async with http.get(url + "/ready") as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGTERM)

            async def says_so() -> bool:
                async with http.get(url + "/ready") as answer:
                    return (answer.status, (await answer.json())["draining"]) == (503, True)

            await until(says_so)
            async with aiohttp.ClientSession() as late, late.post(url + COMPLETIONS, json=PROMPT) as answer:
                assert answer.status == 200
            assert process.returncode is None


@pytest.mark.parametrize("drain_s", ["0.3", "0"])
async def test_a_drain_has_an_end(drain_s: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "eldr.yaml").write_text("drain_notice_s: 0.2\npolicy: {name: jsq}\n")
    async with engines(2, {}) as made:
        made[1].faults.hang = True
        args = [*workers(made), "--port", str(port), "--config", str(tmp_path / "eldr.yaml")]
        async with serving(*args, "--drain", drain_s) as process:
            await until_healthy(f"http://127.0.0.1:{port}")
            async with aiohttp.ClientSession() as http:
                request = asyncio.create_task(http.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=PROMPT))
                await until_running(made[1])
                process.send_signal(signal.SIGTERM)
                await asyncio.wait_for(process.wait(), HANG_S)
                assert process.returncode == 0
                with pytest.raises(aiohttp.ClientError):
                    await request


async def test_the_admin_api_has_its_own_port_and_key(tmp_path: Path) -> None:
    port, admin = free_port(), free_port()
    (tmp_path / "key").write_text("secret-key\n")
    (tmp_path / "eldr.yaml").write_text(f"admin: {{key_file: {tmp_path / 'key'}}}")
    async with engines(2, {}) as made:
        args = [*workers(made), "--port", str(port), "--admin-port", str(admin), "--policy", "jsq"]
        line = await failure(*args)
        assert "admin API needs a key" in line
        async with serving(*args, "--config", str(tmp_path / "eldr.yaml")) as process:
            await until_healthy(f"http://127.0.0.1:{port}")
            async with aiohttp.ClientSession() as http:
                url = f"http://127.0.0.1:{admin}/workers"
                async with http.get(url) as answer:
                    assert answer.status == 401
                async with http.get(url, headers={"Authorization": "Bearer secret-key"}) as answer:
                    assert [worker["name"] for worker in (await answer.json())["workers"]] == ["p0", "d0"]
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert b"secret-key" not in await process.stderr.read()


async def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        line = await failure(
            "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--port", port
        )
    assert line == f"eldr: port {port} on 127.0.0.1 is in use; choose another with --port"


async def test_no_worker_reachable() -> None:
    args = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--port", "0", "--wait", "0"]
    line = await failure(*args)
    assert line.startswith("eldr: no prefill worker is reachable: worker p0 (http://127.0.0.1:1)")


async def test_a_damaged_profile(tmp_path: Path) -> None:
    (tmp_path / "p.safetensors").write_bytes(b"not a profile")
    args = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]
    line = await failure(*args, "--profile", str(tmp_path / "p.safetensors"))
    assert "p.safetensors" in line


WORKERS = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--port", "0"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prefill", "http://127.0.0.1:1", "--decode"], "no decode worker given"),
        ([*WORKERS, "--option", "tua=0.1"], "no option 'tua'"),
        ([*WORKERS, "--option", "tau"], "'tau' is not of the form KEY=VALUE"),
        ([*WORKERS, "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        ([*WORKERS, "--records", "/proc/x"], "cannot write /proc/x"),
        ([*WORKERS, "--profile", "/nowhere/p.safetensors"], "/nowhere/p.safetensors"),
        ([*WORKERS, "--config", "/nowhere/eldr.yaml"], "cannot read /nowhere/eldr.yaml"),
        ([*WORKERS, "--policy", "domain_label"], "needs the option 'workers'"),
        ([*WORKERS, "--wait", "-1"], "wait_s: -1"),
    ],
)
def test_bad_settings(args: list[str], message: str) -> None:
    with pytest.raises(EldrError, match=re.escape(message)):
        command.main(args, standalone_mode=False)


async def test_a_router_begins_with_what_it_learned_before_whatever_the_number_of_workers(
    tmp_path: Path,
) -> None:
    domain_profile(("code", "law", "zh")).save(tmp_path / "learned")
    port = free_port()
    async with engines(3, {}) as made:
        args = [*workers(made), "--port", str(port), "--save-profile", str(tmp_path / "learned")]
        async with serving(*args, "--profile", "not-there") as process:
            await until_healthy(f"http://127.0.0.1:{port}")
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=PROMPT) as answer,
            ):
                assert answer.headers["x-eldr-decode-worker"] == "d1"
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), HANG_S)


async def test_a_learned_profile_that_is_damaged_is_kept_beside_the_next(tmp_path: Path) -> None:
    file, port = tmp_path / "learned", free_port()
    file.write_bytes(b"half a file")
    async with engines(2, {}) as made:
        args = [*workers(made), "--port", str(port), "--save-profile", str(file)]
        async with serving(*args) as process:
            await until_healthy(f"http://127.0.0.1:{port}")
            process.send_signal(signal.SIGTERM)
            _, stderr = await asyncio.wait_for(process.communicate(), HANG_S)
            assert process.returncode == 0
            assert b"cannot be used, and is now " + bytes(file) + b".old" in stderr
    assert (tmp_path / "learned.old").read_bytes() == b"half a file"


@pytest.mark.parametrize("name", ["no/such/folder/file", "."])
async def test_a_place_where_no_profile_can_be_saved_is_said_at_the_start(tmp_path: Path, name: str) -> None:
    flags = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--wait", "0"]
    line = await failure(*flags, "--save-profile", str(tmp_path / name))
    assert "adapt.save: cannot write" in line
