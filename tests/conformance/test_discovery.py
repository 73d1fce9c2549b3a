"""Workers that a file, DNS or Kubernetes tells, from there to a request that runs on them."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from discovery.fake_kubernetes import fake_kubernetes, pod
from eldr.config import load_config
from eldr.errors import NoWorkerError
from eldr.policy import create_policy
from eldr.profile.artifact import Profile
from eldr.proxy.discovery.file import Reload
from eldr.proxy.membership import Membership
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from eldr.proxy.tls import server_tls
from eldr.settings_front import SecurityConfig
from support.mock_engine import MockEngine, engines
from support.profiles import domain_profile
from support.stack import COMPLETIONS, served
from support.waiting import HANG_S, until

PROMPT = {"prompt": "a law text", "max_tokens": 3}


class Routed:
    """A router whose workers come from somewhere."""

    def __init__(self, url: str, membership: Membership, http: aiohttp.ClientSession) -> None:
        self.url, self.membership, self.http = url, membership, http

    def states(self) -> dict[str, str]:
        return {seen.name: seen.state for seen in self.membership.snapshot()}

    async def until(self, **expected: str) -> None:
        await until(lambda: self.states() == expected)

    async def ask(self) -> str | None:
        async with self.http.post(self.url + COMPLETIONS, json=PROMPT) as answer:
            assert answer.status == 200, await answer.text()
            return answer.headers.get("x-eldr-decode-worker")

    async def metrics(self) -> str:
        async with self.http.get(self.url + "/metrics") as answer:
            return await answer.text()


@asynccontextmanager
async def routed(
    settings: dict[str, Any],
    reload: Reload | None = None,
    profile: Profile | None = None,
    wait_s: float = HANG_S,
) -> AsyncIterator[Routed]:
    rng = np.random.default_rng(0)
    policies = create_policy("jsq", rng=rng), create_policy("locality_band", rng=rng)
    config = reload.load() if reload else load_config(None, {"wait_s": wait_s, **settings})
    async with (
        running_app(config, Profiles(profile), lambda _: policies, None, reload) as app,
        served(app, config) as url,
        aiohttp.ClientSession() as http,
    ):
        yield Routed(url, app.membership, http)


@pytest.fixture
async def four() -> AsyncIterator[list[MockEngine]]:
    """A prefill engine and three decode engines."""
    async with engines(4, {}) as made:
        yield made


async def test_a_file_that_changes_changes_the_workers_and_a_bad_one_does_not(
    tmp_path: Path, four: list[MockEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eldr.proxy.discovery.file.INTERVAL_S", 0.01)
    monkeypatch.setattr("eldr.proxy.discovery.reconcile.PAUSE_S", 0.01)
    path = tmp_path / "eldr.yaml"

    def write(*decode: str) -> None:
        path.write_text(f"prefill: ['{four[0].url}']\ndecode: [{', '.join(decode)}]\n")

    first, second, third = (engine.url for engine in four[1:])
    write(first, second)
    async with routed({}, Reload(str(path), partial(load_config, str(path), {}))) as router:
        assert router.states() == {"p0": "up", "d0": "up", "d1": "up"}
        write(second, f"new={third}")
        await router.until(p0="up", d1="up", new="up")
        assert {await router.ask() for _ in range(3)} <= {"d1", "new"}
        for bad in ("[", "decode: 7", f"prefill: ['{four[0].url}']\ndecode: []", "ftp://x"):
            before = 'eldr_discovery_updates_total{result="failed",source="file"}'
            failed = _value(await router.metrics(), before)
            path.write_text(bad)
            async with asyncio.timeout(HANG_S):
                while _value(await router.metrics(), before) == failed:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert router.states() == {"p0": "up", "d1": "up", "new": "up"}
        write(first)
        await router.until(p0="up", d0="up")
        assert await router.ask() == "d0"


def _value(metrics: str, sample: str) -> str | None:
    return next((line.split()[-1] for line in metrics.splitlines() if line.startswith(sample)), None)


async def test_a_name_in_dns_brings_its_workers(four: list[MockEngine]) -> None:
    names = {"prefill": [f"http://localhost:{four[0].port}"], "decode": [f"http://localhost:{four[1].port}"]}
    async with routed({"dns": {**names, "interval_s": 0.05}}) as router:
        assert await router.ask() == f"127.0.0.1-{four[1].port}"


async def test_workers_behind_a_name_in_dns_speak_tls_with_that_names_certificate(tmp_path: Path) -> None:
    files = {name: str(tmp_path / f"{name}.pem") for name in ("cert", "key")}
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += [
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        files["key"],
        "-out",
        files["cert"],
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)  # noqa: ASYNC221
    except (OSError, subprocess.SubprocessError):
        pytest.skip("openssl, which makes the certificate, does not run here")
    tls = server_tls(SecurityConfig(tls_cert=files["cert"], tls_key=files["key"]))
    async with engines(2, {}, tls=tls) as (prefill, decode):
        names = {
            "prefill": [f"https://localhost:{prefill.port}"],
            "decode": [f"https://localhost:{decode.port}"],
        }
        settings = {"dns": names, "security": {"worker_ca": files["cert"]}}
        async with routed(settings) as router:
            assert await router.ask() == f"127.0.0.1-{decode.port}"
        addresses = {"prefill": [prefill.url], "decode": [decode.url], **settings, "dns": {}}
        with pytest.raises(NoWorkerError, match="certificate"):  # which is not that of the address
            async with routed(addresses, wait_s=0.1):
                pass


async def test_without_any_worker_in_dns_the_start_fails_with_one_line() -> None:
    names = {"prefill": ["http://name.invalid:1"], "decode": ["http://name.invalid:1"]}
    with pytest.raises(NoWorkerError, match="no prefill worker is reachable: none is known"):
        async with routed({"dns": names}, wait_s=0.3):
            pass


async def test_pods_bring_workers_which_come_and_go(tmp_path: Path, four: list[MockEngine]) -> None:
    pytest.importorskip("kubernetes_asyncio", reason="the extra k8s is not installed")
    async with fake_kubernetes(tmp_path) as (cluster, kubeconfig):
        await cluster.put(pod("first", "127.0.0.1"))
        settings = {
            "prefill": [four[0].url],
            "kubernetes": {
                "decode": "role=decode",
                "namespace": "ai",
                "port": four[1].port,
                "kubeconfig": kubeconfig,
            },
        }
        async with routed(settings, profile=domain_profile()) as router:
            assert await router.ask() == "first"
            await cluster.put(pod("not-there", "127.0.0.2"))
            await router.until(p0="up", first="up", **{"not-there": "down"})
            assert await router.ask() == "first"
            await cluster.delete("not-there")
            await router.until(p0="up", first="up")
            await cluster.put(pod("first", "127.0.0.1", ready=False))
            await router.until(p0="up")
            await cluster.put(pod("again", "127.0.0.1"))
            await router.until(p0="up", again="up")
            assert await router.ask() == "again"


async def test_sighup_has_the_file_read_by_a_running_process(tmp_path: Path, four: list[MockEngine]) -> None:
    path, first, second = tmp_path / "eldr.yaml", four[1].url, four[2].url
    path.write_text(f"prefill: ['{four[0].url}']\ndecode: [a={first}]\npolicy: {{name: jsq}}\nport: 0\n")
    command = [sys.executable, "-c", "from eldr.cli import main; main()", "serve", "--config", str(path)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        await _logged(process, b"listening on")
        path.write_text(path.read_text().replace(f"[a={first}]", f"[a={first}, b={second}]"))
        process.send_signal(signal.SIGHUP)
        await _logged(process, b"decode worker b (")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANG_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _logged(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(HANG_S):
        while text not in (line := await process.stderr.readline()):
            assert line, f"the router ended without saying {text!r}"
