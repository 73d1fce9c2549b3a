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
        ("fig2", 'plots need matplotlib; install it with: pip install "\\.\\[plot\\]"'),
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


def test_beyond_goes_on_with_kept_runs_and_writes_its_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, Path]] = []
    monkeypatch.setattr(paper.beyond, "compute", lambda keep, *_: asked.append(("compute", keep)))
    monkeypatch.setattr(paper.beyond, "save", lambda keep, _: asked.append(("save", keep)))
    monkeypatch.setattr(paper.beyond, "show", lambda docs: asked.append(("show", docs)))
    flags = ["beyond", "--keep", str(tmp_path / "kept"), "--docs", str(tmp_path)]
    result = CliRunner().invoke(paper.command, flags, catch_exceptions=False)
    kept = tmp_path / "kept"
    assert asked == [("compute", kept), ("save", kept), ("show", tmp_path)]
    assert result.output == f"wrote {tmp_path / 'policies.md'}\n"


def test_beyond_without_matplotlib_fails_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="plots need matplotlib"):
        CliRunner().invoke(
            paper.command, ["beyond", "--keep", str(tmp_path / "kept")], catch_exceptions=False
        )
    assert not (tmp_path / "kept").exists()
