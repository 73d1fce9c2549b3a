"""The decision benchmark runs the real path and records what it measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from eldr.bench import decision


def test_made_up_counts_are_valid() -> None:
    counts = decision.draw_counts(np.random.default_rng(0))
    assert (counts.sum(axis=1) == decision.PROMPT_TOKENS * decision.TOP_K).all()
    assert counts.max() <= decision.PROMPT_TOKENS


def test_prints_and_writes_medians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "CALLS", 3)
    monkeypatch.setattr(decision, "POOL_SIZES", (2, 5))
    result = CliRunner().invoke(decision.main, ["--out", str(tmp_path / "bench")])
    assert result.exit_code == 0, result.output
    assert "K = 2, 48 x 128, median us: decode" in result.output
    rows = json.loads((tmp_path / "bench" / "decision.json").read_text())["rows"]
    kinds = [(row["policy"], row["workers"]) for row in rows]
    assert kinds == [(policy, workers) for policy in decision.POLICIES for workers in (2, 5)]
    for row in rows:
        assert all(0 < row[part] < 1e6 for part in ("decode_us", "select_us", "whole_us"))
