"""The trace of a request, as the router's path speaks to it. This one does nothing; see eldr.proxy.otel."""

from contextlib import AbstractContextManager, nullcontext

from multidict import CIMultiDict

from eldr.errors import ConfigError
from eldr.metrics.records import RequestRecord
from eldr.proxy.request import Request
from eldr.types import Decision

_NOTHING = nullcontext()


class Trace:
    """The spans of one request: request -> prefill, decide, decode. Off: no spans, headers untouched."""

    def leg(self, name: str, worker_id: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """A span around one leg on a worker, `prefill` or `decode`; an exception marks it as failed."""
        return _NOTHING

    def pass_on(self, headers: CIMultiDict[str]) -> None:
        """Make the running leg the parent of the engine's spans."""

    def decided(self, decision: Decision, fallback: str | None, seconds: float) -> None:
        """A span for a decision that was just made and took `seconds`."""

    def end(self, record: RequestRecord) -> None:
        """The request has ended."""


class Tracing:
    """Begins traces. Off."""

    def begin(self, request: Request, request_id: str) -> Trace:  # noqa: ARG002
        """The trace of a request that has arrived."""
        return NO_TRACE

    async def close(self) -> None:
        """Send what has not been sent yet."""


NO_TRACE = Trace()


def open_tracing(endpoint: str) -> Tracing:
    """Traces that are sent to a collector. Raises ConfigError where OpenTelemetry is not installed."""
    try:
        from eldr.proxy import otel
    except ImportError as error:
        raise ConfigError(f"otlp_endpoint: {error}; install it with: pip install '.[otel]'") from None
    return otel.OtelTracing(otel.exporter_to(endpoint))
