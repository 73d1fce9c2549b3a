"""What `eldr demo` refuses before it starts anything."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from eldr.cli import demo
from eldr.errors import CalibrationError, ConfigError


@pytest.fixture(autouse=True)
def no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the comparison was started")

    monkeypatch.setattr(demo, "run_experiment", fail)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "args",
    [
        ["--rate", "nan"],
        ["--rate", "inf"],
        ["--rate", "0"],
        ["--seed", "-1"],
        ["--policy", "domain_label"],
        ["--out", "file"],
        ["--model", "absent"],
    ],
)
def test_bad_options_are_usage_errors(args: list[str]) -> None:
    Path("file").touch()
    assert CliRunner().invoke(demo.command, args).exit_code == 2


def test_an_output_folder_that_cannot_be_made() -> None:
    Path("file").touch()
    result = CliRunner().invoke(demo.command, ["--out", "file/report"])
    assert isinstance(result.exception, ConfigError)
    assert "cannot write into file/report: Not a directory" in str(result.exception)


def test_a_model_that_is_not_moe() -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    result = CliRunner().invoke(demo.command, ["--model", "model"])
    assert isinstance(result.exception, CalibrationError)
    assert "model is not a mixture-of-experts model" in str(result.exception)
