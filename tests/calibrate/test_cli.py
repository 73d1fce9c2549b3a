import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

from eldr.cli.calibrate import command
from eldr.errors import CalibrationError, EldrError, UpstreamError
from eldr.profile.dataset import CalibrationSet

from .fake_engine import EXPERTS, FakeEngine, choices, oracle_counts


@contextmanager
def running(engine: FakeEngine) -> Iterator[str]:
    """The engine on a thread of its own, since the command runs its own event loop."""
    ready, done, urls = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with engine.serve() as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        done.set()
        thread.join()


@pytest.fixture
def prompt_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"prompt number {n}", "domain": "code" if n % 2 else "law"} for n in range(10)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("source", ["trace", "routed_experts"])
def test_both_sources_write_the_same_set(tmp_path, prompt_file, source: str) -> None:
    out = tmp_path / "cal.npz"
    with running(FakeEngine(dense_layers=(1,))) as url:
        output = run(
            "--engine", url, "--prompts", prompt_file, "--out", out, "--max-tokens", 5, "--source", source,
            "--experts", EXPERTS, "--limit", 6,
        )  # fmt: skip
    assert "6 prompts measured, 0 failed" in output
    calibration = CalibrationSet.load(out)
    assert (len(calibration), calibration.model) == (6, "fake-moe")
    assert calibration.label.tolist() == ["law", "code"] * 3
    for n in range(6):
        text = f"prompt number {n}"
        ids = choices(text, len(text) + 4)
        np.testing.assert_array_equal(calibration.prefill_counts[n], oracle_counts(ids[: len(text)]))
        np.testing.assert_array_equal(calibration.decode_counts[n], oracle_counts(ids[len(text) :]))
    assert list(tmp_path.glob("*.journal")) == []


def test_failed_prompts_are_named_and_tried_again_by_a_rerun(tmp_path, prompt_file) -> None:
    prompt_file.write_text(prompt_file.read_text() + '\n{"prompt": "BAD"}\nnot json\n')
    out = tmp_path / "cal.npz"
    arguments = ("--engine", "{}", "--prompts", prompt_file, "--out", out, "--max-tokens", 5)
    for asked in (11, 1):
        engine = FakeEngine()
        with running(engine) as url:
            output = run("--engine", url, *arguments[2:])
        assert len(engine.requests) == asked
        assert "skipped prompts.jsonl:12" in output
        assert "failed prompts.jsonl:11: status 400" in output
        assert len(CalibrationSet.load(out)) == 10


@pytest.mark.parametrize(
    ("engine", "options", "error"),
    [
        (FakeEngine(plugin=False, routed=False), (), CalibrationError),
        (FakeEngine(zero=True), ("--source", "routed_experts", "--experts", "8"), CalibrationError),
        (FakeEngine(), ("--source", "routed_experts"), CalibrationError),
    ],
)
def test_an_engine_that_cannot_be_calibrated_is_an_expected_error(
    tmp_path, prompt_file, engine, options, error
) -> None:
    out = tmp_path / "cal.npz"
    with running(engine) as url, pytest.raises(error) as raised:
        run("--engine", url, "--prompts", prompt_file, "--out", out, *options)
    assert "\n" not in str(raised.value)
    assert not out.exists()


def test_nobody_at_the_address_and_empty_files(tmp_path, prompt_file) -> None:
    with pytest.raises(UpstreamError, match="no engine answers"):
        run("--engine", "http://127.0.0.1:9", "--prompts", prompt_file, "--out", tmp_path / "c.npz")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(EldrError, match="holds no prompt"):
        run(
            "--engine",
            "http://127.0.0.1:9",
            "--prompts",
            tmp_path / "empty.jsonl",
            "--out",
            tmp_path / "c.npz",
        )


def test_a_named_benchmark_from_a_folder(tmp_path) -> None:
    (tmp_path / "tasks").mkdir()
    rows = [{"prompt": f"question {n}", "domain": "math"} for n in range(20)]
    (tmp_path / "tasks" / "gsm8k.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    out = tmp_path / "cal.npz"
    with running(FakeEngine()) as url:
        output = run(
            "--engine", url, "--benchmark", "gsm8k", "--data", tmp_path, "--limit", 5, "--out", out
        )  # fmt: skip
    assert "5 prompts from the tasks folder of" in output
    assert "math 5" in output
    assert CalibrationSet.load(out).label.tolist() == ["math"] * 5


@pytest.mark.parametrize("which", [[], ["--prompts", "p", "--benchmark", "gsm8k"]])
def test_prompts_or_a_benchmark_but_not_both(tmp_path, which: list[str]) -> None:
    arguments = ["--engine", "http://127.0.0.1:9", "--out", str(tmp_path / "c.npz"), *which]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert "give either --prompts or --benchmark" in result.output
