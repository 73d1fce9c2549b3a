"""What `eldr paper` refuses before it computes anything."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from eldr.cli import paper
from eldr.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fig2", 'plots need matplotlib; install it with: pip install "eldr\\[plot\\]"'),
        ("fig19", "unknown figure 'fig19'; choose from fig1, .*fig11, fig12, .*table2"),
    ],
)
def test_refused_before_any_work(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_pieces(*_: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(paper, "run_pieces", run_pieces)
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(paper.command, [name, "--docs", str(tmp_path)], catch_exceptions=False)
