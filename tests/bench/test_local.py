"""What must be wrong before any engine is started, and what the engines are told."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from eldr.bench import experiment, local
from eldr.bench.progress import Stages
from eldr.bench.settings import Settings
from eldr.cli.demo import command
from eldr.errors import CalibrationError, ConfigError, EngineError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(1 << 20))
    (model / "config.json").write_text('{"num_experts": 8}')
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("\n".join(f'{{"prompt": "prompt {n}"}}' for n in range(40)))
    return Settings(out=tmp_path / "out", model=model, prompts=prompts, requests=20)


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(experiment, "local_pool", fail)


def test_memory_is_looked_at_first(settings, monkeypatch) -> None:
    monkeypatch.setattr(local, "_free_memory_bytes", lambda: 4 << 30)
    with pytest.raises(EngineError, match=r"5 engines need about 4\.6 GiB of memory, 4\.0 GiB are free"):
        local.check_memory(settings)
    monkeypatch.setattr(local, "_free_memory_bytes", lambda: 8 << 30)
    local.check_memory(settings)
    monkeypatch.setattr(local, "_free_memory_bytes", lambda: None)
    local.check_memory(settings)


@pytest.mark.usefixtures("no_engines")
def test_a_missing_matplotlib_is_said_before_anything_is_measured(settings, monkeypatch) -> None:
    monkeypatch.setattr(local, "_free_memory_bytes", lambda: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"\.\[plot\]"):
        experiment.run_experiment(settings, Stages(None, 1))  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_engines")
def test_bad_prompts_end_the_demo_before_an_engine_starts(settings, tmp_path) -> None:
    options = ["--model", str(settings.model), "--out", str(tmp_path / "out")]
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for file, message in ((empty, "holds no prompt"), (settings.prompts, "needed; ask for fewer requests")):
        result = CliRunner().invoke(command, [*options, "--prompts", str(file), "--requests", "30"])
        assert isinstance(result.exception, CalibrationError)
        assert message in str(result.exception)


def test_no_engine_caches_prefixes_and_workers_log_their_steps(settings) -> None:
    worker = local.local_engine(settings, "d0", "eldr").spec
    assert "--no-enable-prefix-caching" in worker.arguments(1)
    assert worker.options == {"step_log": str(settings.logs / "steps-d0.jsonl")}
    plain = local.local_engine(settings, "plain", "none").spec
    assert "--no-enable-prefix-caching" in plain.arguments(1)
    assert "--kv-transfer-config" not in plain.arguments(1)
