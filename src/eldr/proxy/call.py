"""One request on its way through the router: what the client sent, and what has happened so far."""

import time
from typing import Any

from eldr.clock import Clock
from eldr.metrics.decisions import Decided
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import Outcome, RequestRecord
from eldr.proxy import handoff, headers
from eldr.proxy.dialects import COMPLETIONS, DIALECTS
from eldr.proxy.fields import Body, text_field
from eldr.proxy.handoff import Leg, Parts
from eldr.proxy.request import Request
from eldr.proxy.room import SMALL_BYTES
from eldr.proxy.trace import NO_TRACE
from eldr.types import Decision, ExpertCounts, PoolView, RoutingRequest, Vector

DEFAULT_OUTPUT_TOKENS = 256
"""Expected output of a request that sets no limit, for the load in tokens."""


class Call:
    """The state of one request. Fields that have not been reached are None.

    engine_id: begins the request id of each leg; unlike the client's it is unique.
    dialect: the API; it does not matter for a path that is not handed off.
    """

    streams = hides_usage = False
    prefill_done_s: float | None = None
    decided_s: float | None = None
    first_token_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_worker: str | None = None
    counts: ExpertCounts | None = None
    decision: Decision | None = None
    decisions: tuple[Decided, ...] = ()
    trace = NO_TRACE
    model: str | None = None
    fallback: str | None = None
    attempts = 0
    status: int | None = None
    outcome: Outcome = "ok"
    error: str | None = None
    _max_tokens: int | None = None
    _engine_fields: str | None = None
    _large = False

    def __init__(self, request: Request, clock: Clock, label_header: str) -> None:
        self.request = request
        self.clock = clock
        self.request_id = headers.client_request_id(request)
        self.engine_id = headers.new_id()
        self.label = _text(request.headers.get(label_header))
        self.dialect = DIALECTS.get(request.path, COMPLETIONS)
        self.started_at, self.arrival_s = time.time(), clock.now_s()
        self.body: Body = {}

    def take_body(self, data: bytes) -> None:
        """Note what the client asks for. Raises BadRequestError."""
        self.body = handoff.parse(data, self.dialect)
        self._large = len(data) > SMALL_BYTES
        self.streams = handoff.streams(self.body)
        self.hides_usage = self.streams and handoff.hides_usage(self.body, self.dialect)
        self._max_tokens = handoff.max_tokens(self.body)
        self.model = text_field(self.body, "model")

    def encoded(self, leg: Leg) -> Parts:
        """The body of a leg as JSON."""
        return handoff.encoded_without_copy(leg) if self._large else handoff.encoded(leg)

    def let_go_of_body(self) -> None:
        """Nothing is sent to a worker any more: a body may be large, and a stream long."""
        self.body = {}
        self.request.body.let_go()

    def routing_request(self, signature: Vector | None = None) -> RoutingRequest:
        """What a policy may know of this request."""
        return RoutingRequest(
            request_id=self.engine_id,
            signature=signature,
            label=self.label,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self._max_tokens,
        )

    @property
    def decode_worker(self) -> str:
        """The decode worker chosen last. Only for a request that has one."""
        assert self.decision is not None
        return self.decision.worker_id

    def expected_tokens(self) -> float:
        """Prompt plus expected output tokens, for the ledger."""
        return float((self.prompt_tokens or 0) + (self._max_tokens or DEFAULT_OUTPUT_TOKENS))

    def leg_fields(self, leg: str, *, without_key: bool) -> str:
        """The client's headers for a leg, as lines, under a request id of its own.

        without_key: whether what the client shows of who it is ends here.
        """
        if self._engine_fields is None or self.trace is not NO_TRACE:
            passed = headers.to_engine(self.request.headers, without_key or self.request.authorized)
            self.trace.pass_on(passed)
            self._engine_fields = headers.field_lines(passed)
        return f"{self._engine_fields}{headers.REQUEST_ID}: {self.engine_id}-{leg}\r\n"

    def answer_headers(self) -> list[tuple[str, str]]:
        """What the router adds to every answer."""
        added = [(headers.REQUEST_ID, self.request_id)]
        if self.prefill_worker is not None:
            added.append((headers.PREFILL_WORKER, self.prefill_worker))
        if self.decision is not None:
            added.append((headers.DECODE_WORKER, self.decision.worker_id))
            added.append((headers.POLICY, self.decision.policy))
        return added

    def decided(self, decision: Decision, reason: str | None, metrics: RouterMetrics) -> None:
        """Note a decision; `reason` says why there was no signature, where the policy cannot know."""
        self.decision, self.fallback = decision, reason or decision.fallback
        self.decided_s = self.clock.now_s()
        self.attempts += 1
        since_s = self.arrival_s if self.prefill_done_s is None else self.prefill_done_s
        if self.attempts == 1:
            metrics.decided(decision, self.decided_s - since_s)
        self.trace.decided(decision, self.fallback, self.decided_s - since_s)

    def note_decision(self, request: RoutingRequest, view: PoolView) -> None:
        """Keep what the last decision was made from, for the decision log."""
        assert self.decision is not None
        assert self.decided_s is not None
        made = Decided(self.decided_s, request, self.decision, view, self.fallback)
        self.decisions = (*self.decisions, made)

    def ended(self, outcome: Outcome, status: int | None, error: str | None) -> None:
        """Note an end other than a whole answer of status 200."""
        self.outcome, self.status, self.error = outcome, status, _text(error)

    def record(self) -> RequestRecord:
        """The request's record, as of now."""
        return RequestRecord(
            request_id=self.request_id,
            path=self.request.path,
            model=self.model,
            stream=self.streams,
            label=self.label,
            started_at=self.started_at,
            arrival_s=self.arrival_s,
            prefill_done_s=self.prefill_done_s,
            decided_s=self.decided_s,
            first_token_s=self.first_token_s,
            finish_s=self.clock.now_s(),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            prefill_worker=self.prefill_worker,
            fallback=self.fallback,
            attempts=self.attempts,
            status=self.status,
            outcome=self.outcome,
            error=self.error,
            **({} if self.decision is None else _explained(self.decision)),
        )


def _text(value: str | None) -> str | None:
    """A string that can be written as UTF-8: header bytes that are none arrive as lone surrogates."""
    return value and value.encode(errors="replace").decode()


def _explained(decision: Decision) -> dict[str, Any]:
    return {
        "decode_worker": decision.worker_id,
        "policy": decision.policy,
        "similarity": decision.similarity,
        "best_similarity": decision.best_similarity,
        "band_size": decision.band_size,
        "in_flight": decision.in_flight,
    }
