import asyncio

import numpy as np
import pytest

from eldr.bench.load import Planned, drive_closed, drive_open, plan_poisson, raise_on_errors
from eldr.calibrate.prompts import Prompt
from eldr.errors import UpstreamError

from .fake_worker import FakeWorker


def plan_of(*texts: str, gap_s: float = 0.0, max_tokens: int = 4) -> list[Planned]:
    return [Planned(n, n * gap_s, Prompt(text, "law", ""), max_tokens) for n, text in enumerate(texts)]


def test_a_plan_is_poisson_and_the_same_for_the_same_seed() -> None:
    prompts = [Prompt(str(n), "", "") for n in range(4000)]
    first, again = (plan_poisson(prompts, 20.0, 7, np.random.default_rng(3)) for _ in range(2))
    assert first == again
    assert sorted(int(planned.prompt.text) for planned in first) == list(range(4000))
    assert [planned.index for planned in first] == list(range(4000))
    gaps = np.diff([0.0] + [planned.arrival_s for planned in first])
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.05)  # of an exponential distribution: its mean


async def test_open_loop_sends_on_time_however_slow_the_answers_are() -> None:
    worker = FakeWorker(hold=6)  # nobody is answered before the sixth request has come
    async with worker.serve() as url:
        began_s = asyncio.get_running_loop().time()
        replies = await drive_open(url, "m", plan_of(*"abcdef", gap_s=0.05))
    assert worker.most == 6
    assert [body["prompt"] for _, body, _ in worker.seen] == list("abcdef")
    assert all(at_s - began_s >= 0.05 * number for number, (at_s, *_) in enumerate(worker.seen))
    assert [reply.index for reply in replies] == list(range(6))
    assert [reply.record.arrival_s for reply in replies] == pytest.approx([0.05 * n for n in range(6)])


async def test_a_reply_has_the_text_and_the_times() -> None:
    worker = FakeWorker(first_s=0.1, gap_s=0.05)
    async with worker.serve() as url:
        began_s = asyncio.get_running_loop().time()
        [reply] = await drive_open(url, "m", plan_of("prompt"))
    record = reply.record
    assert (reply.prompt, reply.text) == ("prompt", "pro1 pro2 pro3 ")
    assert (record.output_tokens, record.decode_worker, record.policy, record.label) == (
        4,
        "d1",
        "jsq",
        "law",
    )
    assert (record.outcome, record.error) == ("ok", None)
    assert record.first_token_s is not None
    assert 0.1 <= record.first_token_s < worker.written[1] - began_s
    assert record.finish_s >= worker.written[-1] - worker.seen[0][0]
    body = worker.seen[0][1]
    assert (body["stream"], body["max_tokens"], body["temperature"], body["ignore_eos"]) == (
        True,
        4,
        0.0,
        True,
    )
    assert "seed" not in body
    assert worker.seen[0][2] == "law"


async def test_closed_loop_keeps_the_number_in_flight() -> None:
    worker = FakeWorker(first_s=0.02)
    async with worker.serve() as url:
        replies = await drive_closed(url, "m", plan_of(*"abcdefghijkl"), concurrency=3)
    assert worker.most == 3
    assert [reply.index for reply in replies] == list(range(12))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("REFUSE", "status 503"),
        ("CUT", "the stream broke off"),
        ("ERROR", "decode worker died"),
    ],
)
async def test_failures_are_recorded_and_named(text: str, error: str) -> None:
    async with FakeWorker().serve() as url:
        replies = await drive_open(url, "m", plan_of("fine", text))
    assert [reply.record.outcome for reply in replies] == ["ok", "broken"]
    assert error in (replies[1].record.error or "")
    with pytest.raises(UpstreamError, match="policy x: 1 of 2 requests failed, first: .*" + error):
        raise_on_errors(replies, "policy x")
    raise_on_errors(replies[:1], "policy x")


async def test_nobody_at_the_address() -> None:
    [reply] = await drive_open("http://127.0.0.1:9", "m", plan_of("x"))
    assert reply.record.outcome == "broken"
    assert reply.record.first_token_s is None
