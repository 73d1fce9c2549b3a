"""`eldr simulate` as a user runs it."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from eldr.cli.simulate import command
from eldr.cli.simulate_setup import DEFAULT_POLICIES
from eldr.errors import EldrError
from eldr.metrics.decisions import Decided, explain
from eldr.metrics.records import RequestRecord
from eldr.policy import create_policy
from eldr.sim.comparison import BASELINES
from eldr.sim.costs import named_cost
from eldr.types import RoutingRequest
from support.pools import random_view
from support.synthetic import calibration_set

SMALL = (
    "--prefill",
    "1",
    "--decode",
    "2",
    "--requests",
    "60",
    "--seeds",
    "2",
    "--output-tokens",
    "20",
)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("simulate") / "cal.npz"
    calibration_set(requests=40).save(path)
    return str(path)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_a_table_a_json_file_and_a_picture(calibration: str, tmp_path: Path) -> None:
    out, picture = tmp_path / "sim.json", tmp_path / "sim.png"
    files = ("--out", str(out), "--plot", str(picture))
    result = simulate("--calibration", calibration, *SMALL, "--rate", "20", *files)
    assert result.exit_code == 0, result.output
    for name in (*DEFAULT_POLICIES, "evidence: trace"):
        assert name in result.output
    report = json.loads(out.read_text())
    assert [row["policy"] for row in report["rows"]] == list(DEFAULT_POLICIES)
    assert {row["reference"] for row in report["rows"]} <= set(BASELINES)
    row = report["rows"][-1]
    assert row["outcomes"] == {"ok": 120, "refused": 0, "broken": 0}
    assert row["tpot_p50_ms"]["low"] < row["tpot_p50_ms"]["mean"] < row["tpot_p50_ms"]["high"]
    assert "H200 with the step cost of Qwen3-30B-A3B, borrowed" in " ".join(result.output.split())
    own = named_cost("h200-qwen3-30b-a3b")
    assert (report["cost"]["name"], report["cost"]["experts"]) == (own.name, 16)
    assert report["cost"]["moe"]["active_us"] == pytest.approx(own.moe.active_us * own.experts / 16)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_workers_fail_and_join_and_the_loss_is_told(calibration: str) -> None:
    changes = ("--fail", "0@0.2", "--join", "d0@0.4")
    result = simulate("--calibration", calibration, *SMALL, "--policy", "jsq", "--in-flight", "10", *changes)
    assert result.exit_code == 0, result.output
    assert "requests broken" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cost", "h300"), "--cost h300: no such file"),
        (("--option", "tau=0.1"), "--option belongs to one policy"),
        (("--policy", "jsq", "--option", "tau=0.1"), "has no option 'tau'"),
        (("--policy", "domain_label"), "needs the option 'workers'"),
        (("--fail", "x@3"), "no decode worker"),
        (("--fail", "7@3"), "decode worker 7"),
        (("--mix", "nonsense=1"), "nonsense"),
        (("--exact",), "--exact needs"),
        (("--kv-tokens", "10"), "room for 10"),
        (("--plot", "x.bmp"), "--plot x.bmp"),
        (("--workload", "tasks"), "--calibration leaves --workload without effect"),
        (("--in-flight", "3", "--rate", "9"), "--in-flight leaves --rate without effect"),
        (("--arrivals", __file__), "--arrivals leaves --output-tokens, --requests without effect"),
    ],
)
def test_bad_input_is_one_line(calibration: str, arguments: tuple[str, ...], message: str) -> None:
    result = simulate("--calibration", calibration, *SMALL, *arguments)
    assert isinstance(result.exception, EldrError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_bad_pairs_are_told_with_an_example(calibration: str) -> None:
    result = simulate("--calibration", calibration, "--fail", "3")
    assert result.exit_code == 2
    assert "like 3@60" in result.output


def test_a_log_is_taken_again(tmp_path: Path) -> None:
    rng, policy, lines = np.random.default_rng(0), create_policy("jsq", rng=np.random.default_rng(0)), []
    end = RequestRecord(request_id="r", path="/", started_at=0, arrival_s=0, finish_s=1, outcome="ok")
    for number in range(20):
        request, view = RoutingRequest(str(number)), random_view(rng, 4)
        decision = policy.select(request, view)
        line = explain(end, 1, Decided(float(number), request, decision, view, None), last=True)
        lines.append(msgspec.json.encode(line) + b"\n")
    log = tmp_path / "decisions.jsonl"
    log.write_bytes(b"".join(lines))
    result = simulate("--replay", str(log))
    assert (result.exit_code, result.output) == (0, "jsq: 20 of 20 decisions are the same\n")
    idle = simulate("--replay", str(log), "--decode", "4")
    assert isinstance(idle.exception, EldrError)
    assert "--replay leaves --decode without effect" in str(idle.exception)
    other = simulate("--replay", str(log), "--policy", "round_robin")
    assert other.exit_code == 0
    assert "logged, " in other.output
    log.write_bytes(lines[0].replace(b'"decode_worker":"w', b'"decode_worker":"x'))
    wrong = simulate("--replay", str(log))
    assert isinstance(wrong.exception, EldrError)
    assert "decisions differ" in str(wrong.exception)
