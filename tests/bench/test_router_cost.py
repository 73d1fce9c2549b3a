"""The comparison of routers runs against real processes and counts what was sent."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eldr.bench import router_cost, usage
from eldr.bench.router_cost import Plan


def test_measures_a_router_and_the_way_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_cost, "SHORT", Plan(window_s=0.5, requests=20, repeats=1))
    for name, seconds in {"START_S": 0.2, "LATE_S": 1.0, "SETTLE_S": 0.2}.items():
        monkeypatch.setattr(router_cost, name, seconds)
    words = ["--short", "--connections", "8", "--router", "none, hand-off", "--router", "eldr soft_locality"]
    result = CliRunner().invoke(router_cost.main, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = {row["router"]: row for row in json.loads((tmp_path / "router.json").read_text())["rows"]}
    assert rows.keys() == {"none, hand-off", "eldr soft_locality"}
    for row in rows.values():
        assert len(row["ttft_ms"]) == 20
        assert min(row["ttft_ms"]) > 0
        assert row["chunks"] > 100
    without, routed = rows["none, hand-off"], rows["eldr soft_locality"]
    assert without["cpu_per_request_us"] is None
    assert routed["cpu_per_request_us"] > 0
    assert routed["peak_mib"] > 20


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert usage.cpu_s(2**22) == 0
    assert usage.peak_bytes(2**22) == 0
