"""A decode worker that fails after output was sent must not look like a clean end."""

import asyncio
import json
from pathlib import Path

import pytest

from eldr.metrics.records import read_records
from support.mock_engine import LOAD_FAILED
from support.stack import Stack, right_text, stack

PROMPT = {"prompt": "hello world", "max_tokens": 6, "stream": True}


async def broken(s: Stack) -> list[bytes]:
    reply = await s.post(**PROMPT)
    assert reply.status == 200
    return [event.removeprefix(b"data: ") for event in reply.body.split(b"\n\n") if event]


@pytest.mark.parametrize("fault", [{"die_after_chunks": 3}, {"end_early": True}])
async def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(
    fault: dict[str, object], tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    async with stack(decode=1, records=str(records)) as s:
        for name, value in fault.items():
            setattr(s.decode[0].faults, name, value)
        events = await broken(s)
        assert b"[DONE]" not in events
        error = json.loads(events[-1])["error"]
        assert (error["type"], error["code"]) == ("upstream_error", 502)
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
        assert text == right_text(PROMPT, 3 if "die_after_chunks" in fault else 6)
        assert await s.metric("eldr_upstream_errors_total", worker="d0", kind="mid_stream") == 1
        assert await s.metric("eldr_requests_total", outcome="broken") == 1
        assert len(s.decode[0].received) == 1
        assert len(s.prefill[0].received) == 1
        await s.settled()
    (record,) = read_records(records)
    assert (record.outcome, record.status, record.decode_worker) == ("broken", 200, "d0")
    assert "d0" in (record.error or "")


async def test_a_stream_that_is_whole_stays_so_however_its_connection_ends() -> None:
    async with stack(decode=1) as s:
        s.decode[0].faults.die_after_done = True
        *events, last = await broken(s)
        assert last == b"[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == right_text(PROMPT, 6)
        assert await s.metric("eldr_requests_total", outcome="ok") == 1
        await s.settled()


async def test_a_hanging_stream_ends_with_an_error_event_after_its_idle_time() -> None:
    async with stack(decode=1, idle_timeout_s=1) as s:
        s.decode[0].faults.rest_until = asyncio.Event()
        events = await broken(s)
        assert b"[DONE]" not in events
        assert "error" in json.loads(events[-1])
        await s.settled()


async def test_an_engines_own_error_within_a_stream_passes_and_is_counted() -> None:
    async with stack(decode=1) as s:
        s.decode[0].faults.error_event_at = 2
        events = await broken(s)
        assert events[2:] == [LOAD_FAILED, b"[DONE]"]
        assert await s.metric("eldr_upstream_errors_total", worker="d0", kind="mid_stream") == 1
        assert await s.metric("eldr_requests_total", outcome="broken") == 1
        await s.settled()
