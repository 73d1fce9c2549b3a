"""`make chaos`, shortened, and how it judges what a client got."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eldr.bench.chaos import PROBES, main, violations
from eldr.bench.chaos_clients import judge
from eldr.bench.chaos_engine import word

WORDS = [word("0 p", index) for index in range(3)]
ERROR = b'data: {"error":{"message":"broke off"}}\n\n'
DONE = b"data: [DONE]\n\n"


def stream(*words: str) -> bytes:
    events = (json.dumps({"choices": [{"index": 0, "text": text}]}) for text in words)
    return "".join(f"data: {event}\n\n" for event in events).encode()


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (stream(*WORDS) + DONE, "whole"),
        (stream(*WORDS[:2]) + ERROR, "broken"),
        (ERROR, "broken"),
        (stream(*WORDS[:2]), "cut off"),
        (stream(*WORDS[:2]) + DONE, "cut off"),
        (stream(*WORDS) + b'data: {"choi', "cut off"),
        (b"", "cut off"),
        (stream(word("1 other", 0), *WORDS[1:]) + DONE, "wrong text"),
        (stream(WORDS[0], WORDS[0], WORDS[2]) + DONE, "wrong text"),
        (stream(*WORDS, word("0 p", 3)) + DONE, "wrong text"),
        (stream(WORDS[1]) + ERROR, "wrong text"),
    ],
)
def test_what_a_client_got(data: bytes, end: str) -> None:
    assert judge(data, "0 p", 3) == end


def test_violations_are_named() -> None:
    right = {
        "ends": {"whole": 9, "broken": 1, "502": 1},
        "left_in_ledger": 0,
        "left_on_engines": 0,
        "requests_after_it": {"whole": PROBES},
    }
    assert violations(right) == []
    assert violations({**right, "ends": {"whole": 9, "hung": 2}}) == ["2 requests: hung"]
    assert violations({**right, "left_in_ledger": 3}) == ["left_in_ledger: 3"]
    assert violations({**right, "requests_after_it": {"whole": PROBES - 1, "502": 1}})
    assert violations({**right, "ends": {"502": 4}}) == ["no request ended whole"]


def test_ten_seconds_of_chaos(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    done = CliRunner().invoke(main, ["--minutes", "0.15", "--streams", "40", "--out", str(out)])
    report = json.loads(out.read_text())
    assert (report["violations"], done.exit_code) == ([], 0), done.output
    assert report["left_in_ledger"] == 0
    assert report["ends"]["whole"] > 0
    assert report["events"]
    assert f"{report['requests']} requests in 0.15 minutes" in done.output
