"""Spans of requests for OpenTelemetry, over OTLP/HTTP. Needs the extra `otel`; imported only when it is on.

POST /v1/completions            from the client's traceparent, if it sent one
  prefill    on the prefill worker, whose engine's spans hang below it
  decide     counts, signature, policy
  decode     on the decode worker, to the last byte
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multidict import CIMultiDict
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eldr import __version__
from eldr.metrics.records import RequestRecord
from eldr.proxy.request import Request
from eldr.proxy.trace import Trace, Tracing
from eldr.types import Decision

_W3C = TraceContextTextMapPropagator()


class OtelTracing(Tracing):
    """Traces that end in an exporter, in batches from a thread of their own."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "eldr"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("eldr", __version__)

    def begin(self, request: Request, request_id: str) -> Trace:
        root = self._tracer.start_span(
            f"{request.method} {request.path}",
            context=_W3C.extract(request.headers),
            kind=SpanKind.SERVER,
            attributes={"eldr.request_id": _text(request_id), "url.path": request.path},
        )
        return OtelTrace(self._tracer, root)

    async def close(self) -> None:
        await asyncio.to_thread(self._provider.shutdown)


class OtelTrace(Trace):
    """The spans of one request."""

    def __init__(self, tracer: Tracer, root: Span) -> None:
        self._tracer, self._root, self._running = tracer, root, root

    @contextmanager
    def leg(self, name: str, worker_id: str) -> Iterator[None]:
        span = self._tracer.start_span(
            name,
            context=set_span_in_context(self._root),
            kind=SpanKind.CLIENT,
            attributes={"eldr.worker": worker_id},
        )
        self._running = span
        try:
            yield
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            self._running = self._root
            span.end()

    def pass_on(self, headers: CIMultiDict[str]) -> None:
        _W3C.inject(headers, context=set_span_in_context(self._running))

    def decided(self, decision: Decision, fallback: str | None, seconds: float) -> None:
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            "decide",
            context=set_span_in_context(self._root),
            start_time=now_ns - int(seconds * 1e9),
            attributes=_given(
                {
                    "eldr.policy": decision.policy,
                    "eldr.worker": decision.worker_id,
                    "eldr.band_size": decision.band_size,
                    "eldr.in_flight": decision.in_flight,
                    "eldr.similarity": decision.similarity,
                    "eldr.best_similarity": decision.best_similarity,
                    "eldr.fallback": fallback,
                }
            ),
        )
        span.end(now_ns)

    def end(self, record: RequestRecord) -> None:
        self._root.set_attributes(
            _given(
                {
                    "eldr.outcome": record.outcome,
                    "eldr.attempts": record.attempts,
                    "eldr.ttft_s": record.ttft_s,
                    "http.response.status_code": record.status,
                    "gen_ai.request.model": record.model and _text(record.model),
                    "gen_ai.usage.input_tokens": record.prompt_tokens,
                    "gen_ai.usage.output_tokens": record.output_tokens,
                }
            )
        )
        if record.outcome == "broken" or (record.status or 0) >= 500:
            self._root.set_status(Status(StatusCode.ERROR, record.outcome))
        self._root.end()


def exporter_to(endpoint: str) -> SpanExporter:
    """An exporter that posts to a collector; OTEL_EXPORTER_OTLP_* variables set its headers and time-outs."""
    return OTLPSpanExporter(endpoint=endpoint)


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None}


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()
