"""LocalEngine with a stand-in for vLLM's server: no engine, whatever it does, outlives its starter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eldr.bench import engine as launcher
from eldr.bench.engine import EngineSpec, LocalEngine, free_port, running, stop_all
from eldr.errors import EngineError

STAND_IN = """
import http.server, os, signal, subprocess, sys, time

behaviour = os.environ["BEHAVIOUR"]
print("arguments:", *sys.argv[1:], flush=True)
if behaviour == "crash":
    sys.exit("ValueError: no such model")
child = subprocess.Popen(["sleep", "1000"])
print("child", child.pid, flush=True)
if behaviour == "silent":
    time.sleep(1000)
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

Make = Callable[..., LocalEngine]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    package = tmp_path / "path" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(STAND_IN)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    model = tmp_path / "model"
    model.mkdir()

    def engine(behaviour: str = "serve", **spec: object) -> LocalEngine:
        environment = {"PYTHONPATH": str(tmp_path / "path"), "BEHAVIOUR": behaviour}
        settings = {"model": model, "log_dir": tmp_path / "logs", "extra_env": environment, **spec}
        return LocalEngine(EngineSpec(**settings))  # type: ignore[arg-type]

    return engine


def child_pid(engine: LocalEngine) -> int:
    lines = engine.log_path.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("child "))


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_an_engine_answers_and_ends_with_all_it_started(make: Make) -> None:
    with make() as engine:
        assert engine.running
        assert engine.url == f"http://127.0.0.1:{engine.port}"
        child = child_pid(engine)
    assert not engine.running
    assert gone(child)
    engine.stop()  # once more is harmless


def test_a_crash_is_an_error_of_one_line_with_the_reason(make: Make) -> None:
    with pytest.raises(EngineError) as raised:
        make("crash", name="prefill-0").__enter__()
    expected = (
        r"engine prefill-0 ended with status 1: ValueError: no such model; its log is \S+/prefill-0\.log"
    )
    assert re.fullmatch(expected, str(raised.value))


def test_an_engine_that_never_answers_is_ended(make: Make) -> None:
    engine = make("silent")
    engine.start()
    with pytest.raises(EngineError, match="did not answer within 2 s"):
        engine.wait_ready(timeout_s=2)
    assert gone(child_pid(engine))


def test_an_engine_that_ignores_the_request_to_end_is_killed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "STOP_TIMEOUT_S", 0.5)
    with make("stubborn") as engine:
        child = child_pid(engine)
    assert not engine.running
    assert gone(child)


def test_one_failure_stops_the_others(make: Make) -> None:
    engines = [make(name="good"), make("crash", name="bad")]
    with pytest.raises(EngineError, match="engine bad"):
        running(engines).__enter__()
    assert not any(engine.running for engine in engines)


def test_an_exception_inside_stops_all(make: Make) -> None:
    engines = [make(name="a"), make(name="b")]

    def use() -> None:
        with running(engines) as started:
            assert all(engine.running for engine in started)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert not any(engine.running for engine in engines)
    stop_all(engines)


def test_a_killed_starter_leaves_no_engine(make: Make, tmp_path: Path) -> None:
    template = make()
    script = (
        "import sys, time; from pathlib import Path\n"
        "from eldr.bench.engine import EngineSpec, LocalEngine\n"
        f"model, logs = Path({str(template.spec.model)!r}), Path({str(tmp_path / 'logs')!r})\n"
        f"environment = {dict(template.spec.extra_env)!r}\n"
        "spec = EngineSpec(model=model, log_dir=logs, name='orphan', extra_env=environment)\n"
        "LocalEngine(spec).__enter__(); print('ready', flush=True); time.sleep(1000)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        lines = (tmp_path / "logs" / "orphan.log").read_text().splitlines()
        child = next(int(line.split()[1]) for line in lines if line.startswith("child "))
        os.kill(starter.pid, signal.SIGKILL)
        assert gone(child)
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()


def test_the_log_is_named_after_the_engine_and_holds_the_arguments(make: Make) -> None:
    with make(name="decode-1", dtype="float32", extra_args=["--seed", "3"]) as engine:
        text = engine.log_path.read_text()
    assert engine.log_path.name == "decode-1.log"
    for part in ("--enforce-eager", "--dtype float32", "--seed 3", '"kv_connector": "EldrConnector"'):
        assert part in text


def test_plain_and_stock_engines_have_no_capture(tmp_path: Path) -> None:
    plain = EngineSpec(model=tmp_path, log_dir=tmp_path, connector="none").arguments(1)
    stock = EngineSpec(model=tmp_path, log_dir=tmp_path, connector="nixl", role="kv_consumer").arguments(1)
    assert "--kv-transfer-config" not in plain
    assert "NixlConnector" in stock[stock.index("--kv-transfer-config") + 1]
    assert "Eldr" not in " ".join(plain + stock)


def test_a_missing_model_and_a_second_start_are_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist"):
        make(model=tmp_path / "nowhere").start()
    with make() as engine, pytest.raises(EngineError, match="started before"):
        engine.start()


def test_ports_are_not_handed_out_twice() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
