import click
import pytest

from eldr.errors import ConfigError
from eldr.program import run


def test_an_expected_error_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def fails() -> None:
        raise ConfigError("no such folder; make one")

    monkeypatch.setattr("sys.argv", ["fails"])
    with pytest.raises(SystemExit) as exit_info:
        run(fails)
    assert exit_info.value.code == 1
    assert capsys.readouterr().err == "eldr: no such folder; make one\n"
