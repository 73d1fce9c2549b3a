"""`eldr demo` end to end: real engines, a small run, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eldr.metrics.records import read_records

pytestmark = pytest.mark.engine

TINY = ("--decode", "2", "--requests", "20", "--max-tokens", "24", "--batch", "4", "--rate", "4")
SMALL = ("--decode", "2", "--requests", "240", "--max-tokens", "32", "--batch", "10")
"""A backlog, so that requests decode together however fast the machine is; and enough of them: of 40, what
a policy gains against random batches scatters by 2 points between runs, which is half of the gain."""


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from eldr.cli import main; main()", "demo", "--out", str(out), *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so would the demo, under such a test run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def engine_groups(out: Path) -> set[int]:
    """Process groups of the engines that log below `out`."""
    groups = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{out}/logs" in (process / "cmdline").read_text(errors="replace"):
                groups.add(os.getpgid(int(process.name)))
        except (OSError, ProcessLookupError):
            continue
    return groups


def alive(groups: set[int]) -> set[int]:
    found = set()
    for group in groups:
        try:
            os.killpg(group, 0)
            found.add(group)
        except ProcessLookupError:
            continue
    return found


@pytest.mark.timeout(1800)
def test_a_small_demo_shows_the_gain_and_changes_no_output(tmp_path: Path) -> None:
    out = tmp_path / "report"
    policies = ["round_robin", "locality_band", "soft_locality"]
    demo = start(out, *SMALL, *(word for policy in policies for word in ("--policy", policy)))
    output, _ = demo.communicate(timeout=1700)
    assert demo.returncode == 0, output
    assert "all 720 equal those of a plain vLLM" in output
    report = json.loads((out / "report.json").read_text())
    assert (report["evidence"], report["checked"], report["different"]) == ("engine", 720, [])
    assert [row["policy"] for row in report["rows"]] == policies
    assert [gain["policy"] for gain in report["gains"]] == policies[1:]
    for row in report["rows"]:
        assert sum(row["per_worker"].values()) == row["requests"] == 240
        assert 4 <= row["active_experts"] <= 64  # top_k to the number of experts
        assert 0 < row["tpot_p50_ms"] <= row["tpot_p99_ms"]
    blind, *others = (report["against_mixed"][policy] for policy in policies)
    assert max(others) < blind
    assert len(list(read_records(out / "records.jsonl"))) == 720
    for name in ("active_experts", "policies", "signatures", "placement"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert engine_groups(out) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_engines_end_with_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "report"
    demo = start(out, *TINY)
    deadline = time.monotonic() + 180
    while len(groups := engine_groups(out)) < 3:  # a prefill and two decode workers
        assert time.monotonic() < deadline
        assert demo.poll() is None
        time.sleep(0.2)
    demo.send_signal(number)
    deadline = time.monotonic() + 60
    demo.communicate(timeout=60)
    assert demo.returncode != 0
    while alive(groups):
        assert time.monotonic() < deadline
        time.sleep(0.2)
