import msgspec
import pytest

from eldr.bench.offline import OfflineGain
from eldr.bench.outputs import Difference, differences
from eldr.bench.report import Report, gains
from eldr.bench.results import rows
from eldr.bench.results_page import results_page
from eldr.bench.tables import findings, markdown_table
from eldr.errors import ConfigError
from eldr.profile.artifact import ProfileInfo, routing_fingerprint

from .made_up import run

SETTINGS = {"rate": 10.0, "decode": 2, "dtype": "float32", "requests": 30, "max_tokens": 11, "repeats": 2}
MACHINE = {
    "processor": "a CPU",
    "cores": 2,
    "memory_gib": 24.0,
    "system": "Linux 6",
    "python": "3.11",
    "versions": {"eldr": "9"},
}


def report(different: list[Difference] | None = None) -> Report:
    runs = [run(policy, active, tpot, repeat) for policy, active, tpot in POLICIES for repeat in range(2)]
    table, against_mixed = (
        rows(runs),
        {"jsq": 0.01, "random": -0.01, "locality_band": -0.14, "soft_locality": -0.1},
    )
    yardstick = OfflineGain(6, 2, 30, 20.0, 17.0, -0.15)
    return Report(
        created_at="2026-11-29T20:00:00+00:00",
        machine=MACHINE,
        settings=SETTINGS,
        prompts="made up",
        profile=ProfileInfo(
            model="m", layers=2, experts=8, top_k=2, fingerprint=routing_fingerprint(2, 8, 2),
            transformation="idf", tau=0.1, rho=0.75, calibration_requests=30, seed=0,
            created_at="", eldr_version="9",
        ),
        rows=table,
        gains=gains(table, against_mixed, yardstick),
        offline=[yardstick],
        against_mixed=against_mixed,
        checked=240,
        different=different or [],
    )  # fmt: skip


POLICIES = (
    ("random", 20.0, 0.012),
    ("jsq", 19.0, 0.013),
    ("locality_band", 16.15, 0.010),
    ("soft_locality", 17.1, 0.009),
)


def test_a_table_has_a_line_a_policy_and_changes_for_ours_only() -> None:
    head, _, *lines = markdown_table(report()).splitlines()
    assert head.startswith("| policy | active experts | change |")
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| random", "20.00", ""],
        ["| jsq", "19.00", ""],
        ["| locality_band", "16.15", "-15.0%"],
        ["| soft_locality", "17.10", "-10.0%"],
    ]


def test_findings_name_the_baseline_of_each_number() -> None:
    band, soft, grouped, outputs = findings(report())
    assert band.startswith(
        "locality_band: -15.0% active experts a decode step and layer against the best baseline, jsq;"
    )
    assert "; -13.1% if both had batches of the same sizes; median TPOT" in band
    assert band.endswith("against random.")
    assert soft.startswith("soft_locality: -10.0% active experts")
    assert "in batches of 6: -15.0%" in grouped
    assert "live, at equal sizes: 88% by locality_band, 61% by soft_locality of that." in grouped
    assert "all 240 equal" in outputs


def test_unequal_batches_are_said_first() -> None:
    fair = report()
    larger = msgspec.structs.replace(fair.rows[0], mean_batch=fair.rows[0].mean_batch * 1.3)
    unfair = msgspec.structs.replace(fair, rows=[larger, *fair.rows[1:]])
    warning, band, *_ = findings(unfair, times=False)
    assert warning.startswith("Mean batches go from 6.0 to 7.8")
    assert band == (
        "locality_band: -13.1% active experts a decode step and layer against the best baseline, random, "
        "in batches of the same sizes."
    )
    assert [line.split(" | ")[2] for line in markdown_table(unfair).splitlines()[2:]] == [""] * 4


def test_a_difference_is_said_first_hand() -> None:
    runs = [run("jsq", 10.0, 0.01)]
    reference = {reply.prompt: reply.text for reply in runs[0].replies}
    assert differences(runs, reference) == []
    reference["prompt 7"] = "text 9"
    [found] = differences(runs, reference)
    assert (found.policy, found.request, found.same, found.expected, found.got) == (
        "jsq",
        7,
        5,
        "text 9",
        "text 7",
    )
    assert "1 of 240 DIFFER" in findings(report([found]))[-1]


def test_the_page_is_made_from_the_files_that_are_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no results"):
        results_page(tmp_path)
    (tmp_path / "tpot_wide.json").write_bytes(msgspec.json.encode(report()))
    (tmp_path / "tpot_wide.png").touch()
    page = results_page(tmp_path)
    assert "## Time per output token, memory-bound" in page
    assert "![Active experts and TPOT by policy, memory-bound](bench/tpot_wide.png)" in page
    assert "demo_placement.png" not in page
    assert "| locality_band | 16.15 | -15.0% |" in page
    assert "| median TPOT, ms | repeat 1 | repeat 2 |" in page
    [medians] = [line for line in page.splitlines() if line.startswith("| jsq |") and line.count("|") == 4]
    for cell in medians.split("|")[2:4]:
        assert float(cell) == pytest.approx(13, rel=0.1)
    assert "a CPU, 2 cores" in page


def test_a_file_of_another_version_is_refused(tmp_path) -> None:
    (tmp_path / "demo.json").write_text('{"rows": 3}')
    with pytest.raises(ConfigError, match="not a report of this version"):
        results_page(tmp_path)
