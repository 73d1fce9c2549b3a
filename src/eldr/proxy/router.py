"""One request through the router: prefill, counts, signature, policy, decode, stream."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TypeVar

from msgspec import Raw

from eldr.clock import Clock
from eldr.errors import NoWorkerError, UpstreamError
from eldr.metrics import logs
from eldr.metrics.decisions import DecisionLog
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RecordWriter
from eldr.proxy import handoff
from eldr.proxy.answers import error_answer
from eldr.proxy.attempt import Attempt
from eldr.proxy.body import MalformedBodyError
from eldr.proxy.budget import RetryBudget
from eldr.proxy.call import Call
from eldr.proxy.dialects import PASSED_ON
from eldr.proxy.fleet import Fleet
from eldr.proxy.gate import Gate, TurnedAwayError
from eldr.proxy.handoff import BadRequestError, Leg, PrefillAnswer
from eldr.proxy.learner import Learner
from eldr.proxy.one_worker import reason_for_one_worker
from eldr.proxy.relay import RefusalError, checked, pass_on, relay
from eldr.proxy.request import Request
from eldr.proxy.response import Response
from eldr.proxy.seldom import Seldom
from eldr.proxy.signer import Signed, Signer
from eldr.proxy.trace import Tracing
from eldr.proxy.upstream import BrokenOffError, ExhaustedError, RefusedError, Upstream
from eldr.proxy.worker_answer import Answer
from eldr.types import RoutingRequest

log = logging.getLogger(__name__)

T = TypeVar("T")
Exchange = AbstractAsyncContextManager[Answer]
Reader = Callable[[Answer], Awaitable[T]]
"""Reads the answer of a prefill worker, whose status was 200."""


class Router:
    """Routes requests between two fleets. Its failure policy is in docs/operations.md, "Failures"."""

    def __init__(
        self,
        prefill: Fleet,
        decode: Fleet,
        upstream: Upstream,
        signer: Signer,
        metrics: RouterMetrics,
        clock: Clock,
        *,
        label_header: str,
        budget: RetryBudget,
        gate: Gate,
        records: RecordWriter | None = None,
        decisions: DecisionLog | None = None,
        tracing: Tracing | None = None,
        learner: Learner | None = None,
    ) -> None:
        self.prefill, self.decode = prefill, decode
        self.upstream, self.signer, self.metrics, self.clock = upstream, signer, metrics, clock
        self._label_header, self._budget, self._gate = label_header, budget, gate
        self._records, self._decisions = records, decisions
        self._tracing = tracing or Tracing()
        self._learner = learner
        self._seldom = Seldom(clock)

    async def handle(self, request: Request) -> Response:
        """Answer a completion or chat request, whatever happens on the way."""
        call = Call(request, self.clock, self._label_header)
        self._budget.earn()
        call.trace = self._tracing.begin(request, call.request_id)
        logs.request_id.set(call.request_id)
        try:
            answer = await self._answer(call)
            call.status = call.status or answer.status
            return answer
        except asyncio.CancelledError:
            call.ended("cancelled", None, "the client left")
            raise
        except Exception as error:  # a fault of the router itself, which the front logs and answers with 500
            call.ended("refused", 500, repr(error))
            raise
        finally:
            call.let_go_of_body()
            self._finish(call)

    async def _answer(self, call: Call) -> Response:
        try:
            async with self._gate:
                await self._gate.read(call.request, call.take_body)
                return await (self._pass_on(call) if call.request.path in PASSED_ON else self._route(call))
        except TurnedAwayError as error:
            self.metrics.client_faults.labels(error.fault).inc()
            return _failed(call, error.status, str(error), error.kind, error.retry_after_s)
        except BadRequestError as error:
            return _failed(call, 400, str(error), "invalid_request_error")
        except MalformedBodyError as error:
            return _failed(call, 400, f"the body cannot be read: {error}", "invalid_request_error")
        except RefusalError as refusal:
            if refusal.status >= 500:
                at = call.prefill_worker if call.decision is None else call.decode_worker
                log.warning("request %s: worker %s answers %d", call.request_id, at, refusal.status)
            call.ended("refused", refusal.status, refusal.body[:500].decode(errors="replace"))
            refusal.headers.extend(call.answer_headers())
            return Response(refusal.status, refusal.body, refusal.headers)
        except NoWorkerError as error:
            retry_after_s = max(1, math.ceil(error.retry_after_s or 0))
            return _failed(call, 503, f"{error}; try again", "no_worker_available", retry_after_s)
        except ExhaustedError as error:
            log.warning("request %s failed: %s", call.request_id, error)
            self.metrics.client_faults.labels("exhausted").inc()
            return _failed(call, 503, "the router has no connection left; try again", "overloaded", 1)
        except UpstreamError as error:
            log.warning("request %s failed: %s", call.request_id, error)
            return _failed(call, 502, "a worker failed before it answered", "upstream_error")

    async def _route(self, call: Call) -> Response:
        """Prefill, sign, decode. If decode fails before any output, maybe once more from the start."""
        one_worker = reason_for_one_worker(call.body, call.dialect)
        broken: set[str] = set()
        while True:
            self.decode.require_worker()  # before a prefill that nobody could use
            prefilled = PrefillAnswer() if one_worker else await self._prefill(call)
            signed = Signed(reason=one_worker) if one_worker else self.signer.sign(prefilled)
            call.counts = signed.counts
            request = call.routing_request(signed.signature)
            try:
                return await self._decode(call, prefilled, request, signed.reason, broken)
            except (BrokenOffError, RefusalError) as error:
                self._check_retry(call, error, prefilled, again=bool(broken))
                broken.add(call.decode_worker)

    def _check_retry(
        self, call: Call, error: BrokenOffError | RefusalError, prefilled: PrefillAnswer, *, again: bool
    ) -> None:
        """Count the decode leg's failure, and raise it unless the request may run once more.

        A 500 where a transfer was asked for may be a KV cache that went with its prefill worker.
        """
        if isinstance(error, BrokenOffError):
            self.decode.failed(call.decode_worker, "broke_off")
            kind = "decode_broke_off"
        elif error.status == 500 and prefilled.kv_params is not None:
            kind = "decode_kv_lost"
        else:
            raise error
        if again:
            raise error
        if not self._budget.spend():
            self.metrics.retries_denied.labels(kind).inc()
            raise error
        self.metrics.retries.labels(kind).inc()

    async def _prefill(self, call: Call) -> PrefillAnswer:
        """Compute the prompt on a prefill worker."""
        leg = handoff.prefill_leg(call.body, call.dialect)
        prefilled = await self._ask_prefill(call, leg, _read_prefill)
        call.prefill_done_s = self.clock.now_s()
        call.prompt_tokens, call.cached_tokens = prefilled.prompt_tokens, prefilled.cached_tokens
        return prefilled

    async def _pass_on(self, call: Call) -> Response:
        """Let a prefill worker answer a request that decodes nothing."""
        return await self._ask_prefill(call, call.body, partial(pass_on, call))

    async def _ask_prefill(self, call: Call, leg: Leg, read_answer: Reader[T]) -> T:
        """Ask the least loaded prefill worker; pass over those that refuse a connection."""
        refused: set[str] = set()
        while True:
            with self.prefill.take(call.routing_request(), 0.0, refused) as choice:
                worker = choice.worker
                call.prefill_worker = worker.id
                try:
                    with call.trace.leg(self.prefill.role, worker.id):
                        async with self._send(call, self.prefill, choice, leg) as answer:
                            choice.answered(answer.status)
                            await checked(answer)
                            return await read_answer(answer)
                except RefusedError as error:
                    self._pass_over(self.prefill, choice, refused, error)
                except ExhaustedError:
                    raise
                except UpstreamError:
                    self.prefill.failed(worker.id, "broke_off")
                    raise

    async def _decode(
        self,
        call: Call,
        prefilled: PrefillAnswer,
        request: RoutingRequest,
        reason: str | None,
        broken: Set[str],
    ) -> Response:
        """Decode on the worker that the policy chooses. One that refuses has read nothing; the next may."""
        refused: set[str] = set()
        while True:
            with self.decode.take(request, call.expected_tokens(), refused, broken) as choice:
                worker, choice.pulls_kv = choice.worker, prefilled.kv_params is not None
                call.decided(choice.decision, reason, self.metrics)
                if self._decisions is not None:
                    call.note_decision(request, choice.view)
                try:
                    with call.trace.leg(self.decode.role, worker.id):
                        async with self._send_decode(call, choice, prefilled.kv_params) as answer:
                            choice.answered(answer.status)
                            client = await relay(call, worker, answer, self.metrics)
                    if call.outcome == "broken":
                        choice.failed()
                    return client
                except RefusedError as error:
                    self._pass_over(self.decode, choice, refused, error)

    def _send_decode(self, call: Call, choice: Attempt, kv_params: Raw | None) -> Exchange:
        """The decode leg, whose body nobody keeps: it may be large, and the stream long."""
        return self._send(call, self.decode, choice, handoff.decode_leg(call.body, kv_params, call.dialect))

    def _send(self, call: Call, fleet: Fleet, choice: Attempt, leg: Leg) -> Exchange:
        """One leg to the worker that was chosen; leaving its block early is a cancel."""
        fields = call.leg_fields(f"{fleet.role}{call.attempts}", without_key=self.upstream.has_key)
        return self.upstream.post(choice.worker, call.request.path, call.encoded(leg), fields)

    def _pass_over(self, fleet: Fleet, choice: Attempt, refused: set[str], error: RefusedError) -> None:
        log.warning("%s; trying the next worker", error)
        fleet.refused(choice)
        refused.add(choice.worker.id)
        self.metrics.retries.labels(f"{fleet.role}_refused").inc()

    def _finish(self, call: Call) -> None:
        record = call.record()
        self.metrics.finished(record)
        call.trace.end(record)
        if self._records is not None:
            with self._noting_loss("records"):
                self._records.write(record)
        if self._decisions is not None:
            with self._noting_loss("decision_log"):
                self._decisions.write(record, call.decisions)
        if self._learner is not None:
            try:
                self._learner.saw(record, call.counts)
            except Exception:  # whatever it is, the request is answered
                log.exception("request %s is not learned from", call.request_id)

    @contextmanager
    def _noting_loss(self, file: str) -> Iterator[None]:
        """Go on without a line that cannot be written: a full disk must not fail requests."""
        try:
            yield
        except OSError as error:
            self.metrics.lost_lines.labels(file).inc()
            if self._seldom(file):
                log.error("%s: lines are lost: %s", file, error)


async def _read_prefill(answer: Answer) -> PrefillAnswer:
    return handoff.read_prefill(await answer.read())


def _failed(call: Call, status: int, message: str, kind: str, retry_after_s: int | None = None) -> Response:
    call.ended("refused", status, message)
    answer = error_answer(status, message, kind, retry_after_s)
    answer.headers.extend(call.answer_headers())
    return answer
