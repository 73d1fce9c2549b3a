"""The scheduler's side: plans what the workers collect each step, and writes counts into the answers.

vLLM calls, within one step: `build_connector_meta` (here `plan`), the forward pass, `request_finished` (here
`finished`) for every request that ends, and only then `update_connector_output` (here `consume`). The
answer's parameters are an object that is serialised after all of these, so `consume` may still write into
it. A test pins this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eldr import wire
from eldr.capture.options import CaptureOptions, TraceMode, trace_mode
from eldr.capture.plan import Final, StepKind, StepPlan, StepReport, Traced
from eldr.capture.tally import Tally
from eldr.capture.tracing import DecodeTrace, encode_ids
from eldr.counting import count_experts
from eldr.errors import ConfigError

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.eldr")

Params = dict[str, Any]


@dataclass
class _Watched:
    """A request in the engine, and what it will be answered."""

    request: Request
    counts_wanted: bool
    trace_mode: TraceMode
    prompt_counts: NDArray[np.int32] | None = None
    trace: DecodeTrace = field(init=False)

    def __post_init__(self) -> None:
        self.trace = DecodeTrace(self.request.num_prompt_tokens)


class SchedulerSide:
    """Capture in the scheduler's process.

    Args:
        options: engine-side settings.
        group: index of the KV cache group that the count cache is indexed by.
        block_size: tokens a block of that group.
        top_k: experts a token and layer.
        num_experts: logical experts a layer.
        speculative: whether draft tokens may be rejected; then output tokens are left out of the count cache.
    """

    def __init__(
        self,
        options: CaptureOptions,
        *,
        group: int,
        block_size: int,
        top_k: int,
        num_experts: int,
        speculative: bool = False,
    ) -> None:
        self._default_trace = options.trace
        self._group, self._block_size = group, block_size
        self._top_k, self._num_experts, self._speculative = top_k, num_experts, speculative
        self._watched: dict[str, _Watched] = {}
        self._answers: list[tuple[_Watched, Params]] = []
        self._fresh: list[int] = []
        self.tally = Tally(options)

    def arrived(self, request: Request) -> None:
        """A new request: reads what it asks for."""
        params = request.kv_transfer_params or {}
        asked = params.get("eldr")
        self._watched[request.request_id] = _Watched(
            request,
            counts_wanted=bool(params.get("do_remote_decode"))
            or asked is not None
            or self._default_trace != "off",
            trace_mode=self._trace_mode(asked),
        )

    def allocated(self, fresh_blocks: list[int]) -> None:
        """Blocks were handed to a request without content that we know; they may be filled from elsewhere."""
        self._fresh += fresh_blocks

    def plan(self, output: SchedulerOutput) -> StepPlan:
        """The plan for the step that the scheduler has just put together."""
        plan = StepPlan(requests=len(output.num_scheduled_tokens), fresh=self._fresh)
        self._fresh = []
        # A copied block shares only a part of its source's tokens, and that part's counts are not known.
        plan.fresh += [copy.dst_block_id for copy in output.kv_cache_block_copies or ()]
        kinds = {
            self._plan_request(plan, output, request_id, tokens)
            for request_id, tokens in output.num_scheduled_tokens.items()
        }
        plan.kind = "decode" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed"
        return plan

    def finished(self, request: Request, params: Params | None) -> Params | None:
        """A request ended. Returns the parameters of its answer: the inner connector's own, to be filled
        later.
        """
        watched = self._watched.pop(request.request_id, None)
        if watched is None or not watched.counts_wanted or not _ended_well(request):
            return params
        params = {} if params is None else params
        self._answers.append((watched, params))
        return params

    def consume(self, report: StepReport | None) -> None:
        """Takes a step's report, then completes the answers of the requests that ended with it."""
        if report is not None:
            self.tally.step(report)
            self._store(report)
        answers, self._answers = self._answers, []
        for watched, params in answers:
            self._answer(watched, params)

    def _trace_mode(self, asked: object) -> TraceMode:
        if not isinstance(asked, dict) or "trace" not in asked:
            return self._default_trace
        try:
            return trace_mode(asked["trace"])
        except ConfigError as error:  # a request cannot be refused from here
            logger.warning("ELDR: %s; not traced", error)
            return self._default_trace

    def _plan_request(
        self, plan: StepPlan, output: SchedulerOutput, request_id: str, tokens: int
    ) -> StepKind:
        watched = self._watched[request_id]
        prompt = watched.request.num_prompt_tokens
        start = watched.request.num_computed_tokens
        end = start + tokens
        size = self._block_size
        first_new, after_new = -(-start // size), -(-end // size)
        completes = start < prompt <= end and watched.counts_wanted and watched.prompt_counts is None
        traces = end > prompt and watched.trace_mode != "off"
        uncounts = end > prompt and self._speculative
        if first_new < after_new or completes or traces or uncounts:
            blocks = output.kv_connector_block_state.get_block_ids(request_id)[self._group]
            plan.fresh += blocks[first_new:after_new]
            decode = range(max(start, prompt), end)
            slots = [blocks[position // size] * size + position % size for position in decode]
            if completes:
                plan.finals.append(Final(request_id, blocks[: -(-prompt // size)]))
            if traces:
                plan.traced.append(Traced(request_id, decode.start, slots))
            if uncounts:
                plan.uncounted += slots
        drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        return "decode" if tokens - drafts <= 1 else "prefill"

    def _store(self, report: StepReport) -> None:
        everyone = {**self._watched, **{watched.request.request_id: watched for watched, _ in self._answers}}
        for final, counts in zip(report.plan.finals, report.prompt_counts, strict=True):
            if (watched := everyone.get(final.request_id)) is not None:
                watched.prompt_counts = counts
        for traced, ids in _split(report.plan.traced, report.decode_ids):
            if (watched := everyone.get(traced.request_id)) is not None:
                watched.trace.add(traced.first_position, ids)

    def _answer(self, watched: _Watched, params: Params) -> None:
        if (counts := self._payload(watched)) is not None:
            params["eldr"] = counts
        if watched.trace_mode == "off":
            return
        ids = watched.trace.ids(watched.request.num_output_tokens)
        if ids is not None:
            counted = count_experts(ids, self._num_experts)
            params["eldr_decode"] = wire.encode_counts(counted, top_k=self._top_k, tokens=len(ids))
            if watched.trace_mode == "ids":
                params["eldr_decode_ids"] = encode_ids(ids)

    def _payload(self, watched: _Watched) -> Params | None:
        """The prompt's counts on the wire, or None if there are none that can be trusted."""
        prompt = watched.request.num_prompt_tokens
        covered = covered_tokens(watched.prompt_counts, self._top_k)
        self.tally.payload(covered, prompt)
        if watched.prompt_counts is None or covered is None or not 0 < covered <= prompt:
            return None
        return wire.encode_counts(watched.prompt_counts, top_k=self._top_k, tokens=prompt, covered=covered)


def covered_tokens(counts: NDArray[np.int32] | None, top_k: int) -> int | None:
    """Tokens that counts [L, E] hold: each adds top_k to every layer. None if the layers disagree."""
    if counts is None:
        return None
    sums = counts.sum(axis=1)
    if (sums != sums[0]).any() or sums[0] % top_k:
        return None
    return int(sums[0]) // top_k


def _split(traced: list[Traced], ids: NDArray[np.integer]) -> Iterator[tuple[Traced, NDArray[np.integer]]]:
    start = 0
    for item in traced:
        yield item, ids[start : start + len(item.slots)]
        start += len(item.slots)


def _ended_well(request: Request) -> bool:
    return request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
