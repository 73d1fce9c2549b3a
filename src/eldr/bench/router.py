"""Runs `eldr serve` as a process of its own, as a user would."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from eldr.bench.ports import free_port
from eldr.errors import EngineError


class RouterProcess:
    """A router between the given workers (name -> URL); a context manager that starts it and always ends it.

    log: file for its output. Raises EngineError with the end of the log where it does not come up.
    """

    def __init__(
        self, prefill: Mapping[str, str], decode: Mapping[str, str], policy: str, profile: Path, log: Path
    ) -> None:
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        flags = [("--prefill", f"{name}={url}") for name, url in prefill.items()]
        flags += [("--decode", f"{name}={url}") for name, url in decode.items()]
        flags += [("--policy", policy), ("--profile", str(profile))]
        flags += [("--host", "127.0.0.1"), ("--port", str(self.port))]
        words = [word for flag in flags for word in flag]
        self._command = [sys.executable, "-c", "from eldr.cli import main; main()", "serve", *words]

    def __enter__(self) -> "RouterProcess":
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            self._wait_until_healthy(timeout_s=30.0)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL after 5 s."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _wait_until_healthy(self, timeout_s: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EngineError(
                    f"the router ended with status {self._process.returncode}: {self._last_line()}"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.05)
        raise EngineError(f"the router was not healthy within {timeout_s:.0f} s: {self._last_line()}")

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"no output in {self.log}"
