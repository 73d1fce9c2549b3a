"""Starts vLLM engines for CPUs on this machine, for the demo and the tests. Imports neither vLLM nor torch.

    with LocalEngine(EngineSpec(model=path, log_dir=logs)) as engine:
        requests.post(engine.url + "/v1/completions", ...)

    with running([LocalEngine(spec) for spec in specs]) as engines:  # started in parallel
        ...

The subprocess is guarded by a shell that ends the whole process group when this process closes its pipe, be
it by `stop`, by an exception or because it was killed. So no engine outlives its starter.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import eldr
from eldr.bench.engine_spec import ENVIRONMENT, EngineSpec
from eldr.errors import EngineError

__all__ = ["EngineSpec", "LocalEngine", "free_port", "running", "stop_all", "wait_all"]

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
_ERROR = re.compile(r"\b[\w.]*(?:Error|Exception): .+")

# $@ is the engine. Standard input is a pipe that nobody writes to; its end of file means that we are gone.
# (Descriptors of two digits, as a pipe may have here, are beyond some shells.)
_GUARD = """
exec 3<&0
"$@" </dev/null 3<&- &
engine=$!
{ cat <&3; kill -TERM $engine; n=0
  while kill -0 $engine && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
  kill -s KILL -- -$$; } >/dev/null 2>&1 &
exec 3<&-
wait $engine
"""


class LocalEngine:
    """One engine: `start`, `wait_ready`, `stop`; or all of it as a context manager.

    Attributes:
        spec: how it is started.
        port: HTTP port; chosen at `start` unless the spec names it.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.port = spec.port or 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    @property
    def url(self) -> str:
        """Base URL of the engine's HTTP server, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        """File that takes what the engine prints."""
        return self.spec.log_dir / f"{self.spec.name}.log"

    @property
    def model_name(self) -> str:
        """Model name for requests."""
        return self.spec.served_name or Path(self.spec.model).name

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Starts the process and returns at once.

        Raises:
            EngineError: it runs already, or its model is no folder.
        """
        if self._process is not None:
            raise EngineError(f"engine {self.spec.name} was started before; make a new LocalEngine")
        if not Path(self.spec.model).is_dir():
            raise EngineError(f"engine {self.spec.name}: model folder {self.spec.model} does not exist")
        self.port = self.spec.port or free_port()
        self.spec.log_dir.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            *self.spec.arguments(self.port),
        ]
        end, self._pipe = os.pipe()
        try:
            with self.log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    ["sh", "-c", _GUARD, "eldr-engine", *command],
                    env=self._environment(),
                    stdin=end,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            os.close(end)
        return self

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Waits until the engine answers on /health.

        Raises:
            EngineError: it ended or took longer than `timeout_s`; it has been stopped, and the message says
                why by its log, and where that is.
        """
        deadline = time.monotonic() + timeout_s
        while not self._healthy():
            if not self.running:
                self._fail(f"ended with status {self._process.returncode if self._process else None}")
            if time.monotonic() > deadline:
                self._fail(f"did not answer within {timeout_s:.0f} s")
            time.sleep(0.2)
        return self

    def ask_to_stop(self) -> None:
        """Begins to end the engine, without waiting for it."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def stop(self) -> None:
        """Ends the engine and everything it started; may be called again."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        try:
            return self.start().wait_ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _healthy(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _environment(self) -> dict[str, str]:
        package_root = str(Path(eldr.__file__).parents[1])
        path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        own = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "PYTHONPATH": path}
        return {**os.environ, **ENVIRONMENT, **own, **self.spec.extra_env}

    def _fail(self, what: str) -> None:
        self.stop()
        log = self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""
        raise EngineError(f"engine {self.spec.name} {what}: {reason(log)}; its log is {self.log_path}")


def reason(log: str) -> str:
    """The line of an engine's log that says best why it ended: the last error that does not point at an
    earlier one, else the last line.
    """
    lines = log.split("\n")
    errors = [found[0] for line in lines if (found := _ERROR.search(line)) and "root cause" not in line]
    said = [line for line in lines if line.strip()]
    return (errors or said or ["it printed nothing"])[-1].strip()


@contextlib.contextmanager
def running(
    engines: Sequence[LocalEngine], timeout_s: float = START_TIMEOUT_S
) -> Iterator[Sequence[LocalEngine]]:
    """Starts the engines in parallel, waits for all of them, and stops all of them at the end, whatever
    happens.
    """
    try:
        for engine in engines:
            engine.start()
        wait_all(engines, timeout_s)
        yield engines
    finally:
        stop_all(engines)


def wait_all(engines: Sequence[LocalEngine], timeout_s: float = START_TIMEOUT_S) -> None:
    """Waits until all engines answer, `timeout_s` in all. EngineError as of `LocalEngine.wait_ready`."""
    deadline = time.monotonic() + timeout_s
    for engine in engines:
        engine.wait_ready(max(deadline - time.monotonic(), 0.0))


def stop_all(engines: Sequence[LocalEngine]) -> None:
    """Stops all engines, at the same time, and even if stopping one of them raises."""
    with contextlib.ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.stop)
            engine.ask_to_stop()


_PORTS = range(12_000, 32_000)
"""Below those that Linux gives to outgoing connections, so that none of these takes one before it is used."""

_handed_out: set[int] = set()


def free_port() -> int:
    """A TCP port that is free on this machine now and was not handed out by this process before."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        if port not in _handed_out and _is_free(port):
            _handed_out.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
