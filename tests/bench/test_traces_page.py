from pathlib import Path

import numpy as np
import pytest

from eldr.bench import traces_page
from eldr.traces import DecodeIds, ExpertTraces
from traces.made_up import ids


def made_up() -> ExpertTraces:
    """Twenty requests: twelve with one label, eight with the other."""
    rng = np.random.default_rng(0)
    return ExpertTraces(
        model="m",
        source="made up",
        evidence="trace",
        top_k=2,
        num_layers=3,
        layers=np.arange(3),
        label=np.array(["a"] * 12 + ["b"] * 8),
        prompt_tokens=np.full(20, 7, np.int32),
        prefill=rng.integers(1, 9, (20, 3, 8)).astype(np.uint32),
        ids=DecodeIds.join([ids(5, 3, 8, 2, seed) for seed in range(20)]),
    )


def test_a_row_says_what_is_in_a_source() -> None:
    cells = [cell.strip() for cell in traces_page.row("here", made_up()).strip("|").split("|")]
    assert cells[:6] == ["here", "trace", "20, 2", "3 x 8, 2", "7", "5"]
    assert cells[6].count("%") == 1  # eight requests of each label; not sixteen
    assert cells[6].endswith("/ - / -")
    assert len(cells) == traces_page.HEAD.count("|") - 1


def test_the_table_goes_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_page, "SOURCES", {"here": made_up})
    page = tmp_path / "p.md"
    page.write_text("# x\n<!-- begin sources -->\nold\n<!-- end sources -->\n")
    traces_page.main.main([str(page)], standalone_mode=False)
    assert "| here | trace |" in page.read_text()
    assert "old" not in page.read_text()
