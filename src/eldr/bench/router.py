"""Runs `eldr serve` as a process of its own, as a user would."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from eldr.bench.engine import free_port
from eldr.errors import EngineError

# $@ is the router. Our side never writes to standard input: its end of file means that we are gone, however.
_GUARD = """
exec 3<&0
"$@" </dev/null 3<&- &
router=$!
{ cat <&3; kill -TERM $router; } >/dev/null 2>&1 &
wait $router
"""


class RouterProcess:
    """A router between the given workers (name -> URL); a context manager that starts it and always ends it.

    log: file for its output. more: further flags of `eldr serve`. Raises EngineError with the end of the log
    where it does not come up.
    """

    def __init__(
        self,
        prefill: Mapping[str, str],
        decode: Mapping[str, str],
        policy: str,
        profile: Path,
        log: Path,
        more: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        flags = [("--prefill", f"{name}={url}") for name, url in prefill.items()]
        flags += [("--decode", f"{name}={url}") for name, url in decode.items()]
        flags += [("--policy", policy), ("--profile", str(profile))]
        flags += [("--refit", "off"), ("--tune", "off")]  # what is measured is the policy as it is
        flags += [("--host", "127.0.0.1"), ("--port", str(self.port))]
        words = [word for flag in flags for word in flag]
        self._command = [sys.executable, "-c", "from eldr.cli import main; main()", "serve", *words, *more]

    def __enter__(self) -> "RouterProcess":
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _GUARD, "eldr-router", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_healthy(timeout_s=60.0)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process: SIGTERM, and after 5 s SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_until_healthy(self, timeout_s: float) -> None:
        assert self._process is not None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EngineError(
                    f"the router ended with status {self._process.returncode}: {self._last_line()}"
                )
            try:
                with opener.open(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.05)
        raise EngineError(f"the router was not healthy within {timeout_s:.0f} s: {self._last_line()}")

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"no output in {self.log}"
