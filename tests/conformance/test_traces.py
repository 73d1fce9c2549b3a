"""OpenTelemetry spans of requests, and the traceparent that engines get."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from support.profiles import domain_profile
from support.stack import COMPLETIONS, Stack, stack
from support.waiting import until_running

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

LAW = {"prompt": "a law text", "max_tokens": 5}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ON = {"otlp_endpoint": "http://127.0.0.1:1/v1/traces"}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    made = InMemorySpanExporter()
    monkeypatch.setattr("eldr.proxy.otel.exporter_to", lambda _: made)
    return made


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def traceparents(s: Stack) -> list[tuple[str, str]]:
    """Trace and parent that the prefill and the decode engine got."""
    got = [engine.received[0].headers["traceparent"].split("-") for engine in (s.prefill[0], s.decode[1])]
    return [(trace, parent) for _, trace, parent, _ in got]


def hex_id(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def test_spans_of_a_request(exporter: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    async with stack(policy="locality_band", profile=domain_profile(), observe=ON) as s:
        await s.post(COMPLETIONS, headers, **LAW, stream=True)
        await s.settled()
        passed = traceparents(s)
    spans = by_name(exporter)
    root = spans.pop("POST /v1/completions")
    assert set(spans) == {"prefill", "decide", "decode"}
    assert root.parent is not None
    assert (f"{root.parent.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, PARENT)
    assert {span.parent.span_id for span in spans.values() if span.parent} == {int(hex_id(root)[1], 16)}
    assert passed == [hex_id(spans["prefill"]), hex_id(spans["decode"])]
    facts: Any = dict(root.attributes or {})
    assert (facts["eldr.request_id"], facts["eldr.outcome"]) == ("mine", "ok")
    assert (facts["gen_ai.usage.output_tokens"], facts["http.response.status_code"]) == (5, 200)
    decided: Any = dict(spans["decide"].attributes or {})
    assert (decided["eldr.worker"], decided["eldr.similarity"]) == ("d1", pytest.approx(1.0))
    assert (spans["prefill"].end_time or 0) <= (spans["decode"].end_time or 0)


async def test_a_failed_leg_and_its_request_are_marked(exporter: InMemorySpanExporter) -> None:
    async with stack(decode=1, observe=ON) as s:
        s.decode[0].faults.die_after_chunks = 2
        await s.post(COMPLETIONS, **LAW, stream=True)
    spans = by_name(exporter)
    assert not spans["POST /v1/completions"].status.is_ok
    assert spans["prefill"].status.is_unset


async def test_a_client_that_leaves_ends_its_spans(exporter: InMemorySpanExporter) -> None:
    async with stack(decode=1, observe=ON) as s:
        s.prefill[0].faults.hang = True
        leaving = asyncio.create_task(s.post(**LAW))
        await until_running(s.prefill[0])
        leaving.cancel()
        await s.settled()
    spans = by_name(exporter)
    assert (spans["POST /v1/completions"].attributes or {})["eldr.outcome"] == "cancelled"
    assert not spans["prefill"].status.is_ok


async def test_off_the_clients_traceparent_passes_untouched() -> None:
    async with stack(policy="locality_band", profile=domain_profile()) as s:
        await s.post(COMPLETIONS, {"traceparent": f"00-{TRACE}-{PARENT}-01"}, **LAW)
        assert traceparents(s) == [(TRACE, PARENT), (TRACE, PARENT)]


def test_off_nothing_is_imported() -> None:
    code = (
        "import sys, eldr.cli.serve; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
