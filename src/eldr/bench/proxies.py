"""The routers that `eldr.bench.router_cost` compares, each as the process that its users run."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eldr.bench.engine import free_port
from eldr.errors import EngineError

START_S = 120.0


@dataclass(frozen=True)
class Engines:
    """URLs of mock engines. counts: prefill engines whose answers carry expert counts."""

    prefill: tuple[str, ...]
    counts: tuple[str, ...]
    decode: tuple[str, ...]


@dataclass(frozen=True)
class Proxy:
    """A router. command: its words, from engines, a port, the profile, and the folder of foreign programs."""

    name: str
    command: Callable[[Engines, int, Path, Path], list[str]]


def _flags(name: str, values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in (name, value)]


def _eldr(policy: str, counts: bool) -> Callable[[Engines, int, Path, Path], list[str]]:
    def command(engines: Engines, port: int, profile: Path, _: Path) -> list[str]:
        prefill = engines.counts if counts else engines.prefill
        words = [sys.executable, "-c", "from eldr.cli import main; main()", "serve", "--policy", policy]
        words += ["--refit", "off", "--tune", "off"]
        words += [*_flags("--prefill", prefill), *_flags("--decode", engines.decode), "--port", str(port)]
        return [*words, "--profile", str(profile)] if counts else words

    return command


def _vllm_router(engines: Engines, port: int, _: Path, programs: Path) -> list[str]:
    words = [str(programs / "vllm-router"), "--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    words += [*_flags("--prefill", engines.prefill), *_flags("--decode", engines.decode)]
    words += ["--policy", "round_robin", "--port", str(port), "--prometheus-port", str(free_port())]
    return [*words, "--log-level", "warning", "--max-concurrent-requests", "4096"]


def _sglang_router(engines: Engines, port: int, _: Path, programs: Path) -> list[str]:
    words = [str(programs / "sglang-router"), "launch", "--worker-urls", *engines.decode]
    words += ["--policy", "round_robin", "--port", str(port), "--prometheus-port", str(free_port())]
    return [*words, "--log-level", "warn", "--max-concurrent-requests", "4096"]


PROXIES: Mapping[str, Proxy] = {
    proxy.name: proxy
    for proxy in (
        Proxy("vllm-router", _vllm_router),
        Proxy("sglang-router", _sglang_router),
        Proxy("eldr jsq", _eldr("jsq", counts=False)),
        Proxy("eldr soft_locality", _eldr("soft_locality", counts=True)),
    )
}


@contextmanager
def mock_engines() -> Iterator[Engines]:
    """A process of engines, ended with the block."""
    command = [sys.executable, "-m", "eldr.bench.mock_engines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ports = json.loads(process.stdout.readline())
            roles = ("prefill", "counts", "decode")
            yield Engines(*(tuple(f"http://127.0.0.1:{port}" for port in ports[role]) for role in roles))
        finally:
            process.stdin.close()


def installed(programs: Path) -> dict[str, str]:
    """Versions of the routers of others in their venv, whose folder of programs this is."""
    names = ("vllm-router", "sglang-router")
    text = f"import importlib.metadata as m; print(*map(m.version, {names}))"
    try:
        found = subprocess.run([programs / "python", "-c", text], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(names, found.stdout.split(), strict=True))


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[int]:
    """The id of a router's process that answers on its port; ended with the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with opener.open(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    end = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
    raise EngineError(f"{process.args!r} did not come up within {START_S:.0f} s: {end}")
