from pathlib import Path

import msgspec
import pytest

from bench.test_moe_layer import report
from eldr.bench import moe_layer_page
from eldr.errors import ConfigError


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "moe_layer_some-cpu.json").write_bytes(msgspec.json.encode(report()))
    page = tmp_path / "p.md"
    page.write_text("<!-- begin devices -->\n<!-- end devices -->\n")
    moe_layer_page.main.main([str(tmp_path), str(page)], standalone_mode=False)
    text = page.read_text()
    assert "### Some CPU, 2 cores\n\nTimed: CPU time of one thread; last-level cache 32 MiB." in text
    row = "| Qwen3-30B-A3B | float32 | 1.0 MiB | 0.1 GiB | 100 | 10 | 2 | 1.000 | 0.0% |"
    assert row in text
    assert "active 16 to 128 at batch 64: x 3.89" in text
    assert "(bench/moe_layer_some-cpu.svg)" in text


def test_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eldr bench moe-layer"):
        moe_layer_page.reports(tmp_path)
