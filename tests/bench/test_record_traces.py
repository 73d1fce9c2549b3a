"""Recording against a small stand-in for an engine."""

import json
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from calibrate.fake_engine import EXPERTS, TOP_K, choices, oracle_counts
from eldr.bench.record_traces import Journal, Recorder, assemble, public_prompts
from eldr.calibrate.prompts import Prompt
from eldr.capture.tracing import encode_ids
from eldr.errors import CalibrationError, UpstreamError
from eldr.wire import encode_counts

TOKENS = 5
PROMPTS = [Prompt("alpha", "math", "gsm8k.jsonl:1"), Prompt("bravo!", "zh", "zh.jsonl:1")]


async def _answer(request: web.Request) -> web.Response:
    body = await request.json()
    text, prompt = body["prompt"], len(body["prompt"])
    if "BAD" in text:
        return web.json_response({"error": "no"}, status=400)
    assert body["kv_transfer_params"] == {"eldr": {"trace": "ids"}}
    ids = choices(text, prompt + body["max_tokens"] - 1)
    counts = encode_counts(oracle_counts(ids[:prompt]), top_k=TOP_K, tokens=prompt)
    return web.json_response(
        {"kv_transfer_params": {"eldr": counts, "eldr_decode_ids": encode_ids(ids[prompt:])}}
    )


async def record(journal: Journal, prompts: list[Prompt]) -> None:
    app = web.Application()
    app.router.add_post("/v1/completions", _answer)
    async with TestServer(app) as server:
        await Recorder(str(server.make_url("")).rstrip("/"), "m", journal, TOKENS, 2).record(prompts)


async def test_what_the_engine_chose_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    await record(journal, PROMPTS)
    traces = assemble(PROMPTS, journal.done, "m")
    assert traces.label.tolist() == ["math", "zh"]
    assert traces.ids is not None
    for row, prompt in enumerate(PROMPTS):
        ids = choices(prompt.text, len(prompt.text) + TOKENS - 1)
        np.testing.assert_array_equal(traces.prefill[row], oracle_counts(ids[: len(prompt.text)]))
        np.testing.assert_array_equal(traces.ids.of(row), ids[len(prompt.text) :])
    assert (traces.num_experts, traces.top_k) == (EXPERTS, TOP_K)


async def test_a_journal_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    await record(Journal(tmp_path / "j"), PROMPTS)
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole[:-9])
    again = Journal(tmp_path / "j")
    assert len(again.done) == 1
    await record(again, PROMPTS[1:])
    assert len(Journal(tmp_path / "j").done) == 2
    assert (tmp_path / "j").read_bytes() == whole


async def test_a_refused_prompt_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"x.jsonl:7: status 400"):
        await record(Journal(tmp_path / "j"), [Prompt("BAD", "math", "x.jsonl:7")])


def test_nothing_recorded() -> None:
    with pytest.raises(CalibrationError, match="no prompt"):
        assemble(PROMPTS, {}, "m")


def test_public_prompts_are_distinct_and_cut(tmp_path: Path) -> None:
    for folder, domain in (("tasks", "math"), ("languages", "zh")):
        (tmp_path / folder).mkdir()
        rows = [{"prompt": text, "domain": domain} for text in (domain * 400, domain * 500, "same", domain)]
        (tmp_path / folder / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = public_prompts(tmp_path, None)  # line by line over both files
    assert [len(p.text) for p in found] == [480, 480, 4, 4, 2]
    assert len(public_prompts(tmp_path, 1)) == 2
