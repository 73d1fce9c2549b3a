"""The router's own paths, and what it refuses by itself."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eldr import __version__
from eldr.metrics.decisions import read_decisions
from eldr.metrics.records import read_records
from eldr.proxy.signer import Signer
from support.raw import exchange, post, status_of
from support.stack import COMPLETIONS, stack

PROMPT = {"prompt": "hello world", "max_tokens": 3}


async def test_models_are_merged_by_id() -> None:
    async with stack() as s:
        data = (await s.get("/v1/models")).json
        assert data["object"] == "list"
        assert [card["id"] for card in data["data"]] == ["mock"]
        s.decode[1].model = "adapter"
        assert [card["id"] for card in (await s.get("/v1/models")).json["data"]] == ["mock", "adapter"]


async def test_models_of_workers_that_are_all_gone_are_a_503() -> None:
    async with stack(decode=1) as s:
        await s.prefill[0].stop()
        await s.decode[0].stop()
        reply = await s.get("/v1/models")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "3600")  # at the next checks


async def test_small_paths() -> None:
    async with stack() as s:
        assert (await s.get("/health")).json == {"status": "ok"}
        assert (await s.get("/ready")).json == {"ready": True, "missing": [], "draining": False}
        assert (await s.get("/version")).json == {"version": __version__}


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/responses/resp_1", "/v1/batches", "/elsewhere"])
async def test_an_unknown_path_is_an_openai_404(path: str) -> None:
    async with stack() as s:
        reply = await s.post(path)
        assert reply.status == 404
        assert reply.json["error"]["type"] == "not_found_error"
        assert reply.json["error"]["code"] == 404


@pytest.mark.parametrize(
    "target", ["/v1%2Fcompletions", "/v1/completions/", "//v1/completions", "/V1/completions"]
)
async def test_a_path_that_only_resembles_a_known_one_is_unknown(target: str) -> None:
    async with stack() as s:
        assert status_of(await exchange(s.url, post(PROMPT, path=target))) == 404
        assert status_of(await exchange(s.url, post(PROMPT, path=COMPLETIONS + "?a=b"))) == 200
        assert len(s.decode[0].received) + len(s.decode[1].received) == 1


async def test_a_get_of_completions_is_a_405() -> None:
    async with stack() as s:
        reply = await s.get(COMPLETIONS)
        assert (reply.status, reply.json["error"]["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"", {}),
        (b"{", {}),
        (b"[]", {}),
        (b"\xff\xfe", {}),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}),
        (b"not gzip", {"Content-Encoding": "gzip"}),
    ],
)
async def test_a_body_that_is_no_json_object_reaches_no_engine(data: bytes, headers: dict[str, str]) -> None:
    async with stack() as s, s.http.post(s.url + COMPLETIONS, data=data, headers=headers) as answer:
        assert answer.status == 400
        assert json.loads(await answer.read())["error"]["type"] == "invalid_request_error"
        assert not s.prefill[0].received


async def test_a_compressed_body_is_read() -> None:
    async with stack() as s:
        data, headers = gzip.compress(json.dumps(PROMPT).encode()), {"Content-Encoding": "gzip"}
        async with s.http.post(s.url + COMPLETIONS, data=data, headers=headers) as answer:
            assert answer.status == 200
        assert s.prefill[0].received[0].body["prompt"] == "hello world"
        assert "Content-Encoding" not in s.prefill[0].received[0].headers


async def test_headers_that_are_no_text_fail_nothing(tmp_path: Path) -> None:
    async with stack(records=str(tmp_path / "records.jsonl")) as s:
        body = json.dumps(PROMPT).encode()
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        )
        odd = b"X-Request-Id: \xff\xfe\r\nx-eldr-label: \xff\xfe\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rpartition(":")[2]))
        writer.write(head.encode() + odd + body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
    (record,) = read_records(tmp_path / "records.jsonl")
    assert record.label == "??"
    assert len(record.request_id) == 32


async def test_a_full_disk_fails_no_request_and_costs_no_line_of_another_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decisions = tmp_path / "decisions.jsonl"
    async with stack(records="/dev/full", observe={"decision_log": str(decisions)}) as s:
        for _ in range(3):
            assert (await s.post(**PROMPT)).status == 200
        assert await s.metric("eldr_lost_lines_total", file="records") == 3
        assert await s.metric("eldr_lost_lines_total", file="decision_log") == 0
    assert len(list(read_decisions(decisions))) == 3
    assert caplog.text.count("lines are lost") == 1


async def test_a_body_over_the_limit_is_a_413() -> None:
    async with stack(body_limit_bytes=1000) as s:
        reply = await s.post(prompt="x" * 2000)
        assert (reply.status, reply.json["error"]["code"]) == (413, 413)
        assert not s.prefill[0].received
        assert (await s.post(**PROMPT)).status == 200


async def test_metrics_can_be_scraped_and_count_what_happened() -> None:
    async with stack() as s:
        await s.post(**PROMPT)
        await s.post(stream=True, **PROMPT)
        reply = await s.get("/metrics")
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(reply.text)}
        assert all(name.startswith("eldr_") for name in families)
        assert await s.metric("eldr_requests_total", outcome="ok") == 2
        assert await s.metric("eldr_worker_requests_total", role="prefill", worker="p0") == 2
        assert await s.metric("eldr_time_to_first_token_seconds_count") == 1
        assert await s.metric("eldr_request_time_per_output_token_seconds_count") == 1
        assert await s.metric("eldr_prefill_seconds_count") == 2
        assert await s.metric("eldr_e2e_request_latency_seconds_count") == 2
        assert await s.metric("eldr_decision_seconds_count") == 2
        assert await s.metric("eldr_in_flight_requests", role="decode", worker="d0") == 0
        assert await s.metric("eldr_worker_up", role="decode", worker="d1") == 1


async def test_a_fault_of_the_router_itself_is_a_500_in_openai_form_and_a_trace_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("never thought of")

    async with stack() as s:
        monkeypatch.setattr(Signer, "sign", fails)
        reply = await s.post(prompt="x", max_tokens=2)
        error = reply.json["error"]
        assert (reply.status, error["type"], error["code"]) == (500, "internal_error", 500)
        assert "never thought of" not in reply.text
        assert "ZeroDivisionError: never thought of" in caplog.text
        assert await s.metric("eldr_requests_total", outcome="refused") == 1
        await s.settled()
