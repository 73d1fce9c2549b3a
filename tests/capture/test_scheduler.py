"""The scheduler's side on steps made by hand, without vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eldr.capture.options import CaptureOptions
from eldr.capture.plan import Final, PendingReport, StepPlan, StepReport, Traced, merge
from eldr.capture.scheduler import SchedulerSide, covered_tokens
from eldr.wire import decode_counts

LAYERS, EXPERTS, TOP_K, SIZE = 2, 8, 2, 4


@dataclass
class Request:
    """What the scheduler's side reads of vLLM's request."""

    request_id: str
    num_prompt_tokens: int
    kv_transfer_params: dict[str, Any] | None = None
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    status: Any = field(default_factory=lambda: SimpleNamespace(name="FINISHED_LENGTH_CAPPED"))


def step(
    scheduled: Mapping[str, int],
    blocks: Mapping[str, list[int]],
    *,
    drafts: Mapping[str, list[int]] | None = None,
    copies: list[tuple[int, int]] | None = None,
) -> Any:
    """A scheduler output: tokens by request, block tables of KV cache group 0."""
    return SimpleNamespace(
        num_scheduled_tokens=dict(scheduled),
        scheduled_spec_decode_tokens=dict(drafts or {}),
        kv_cache_block_copies=[SimpleNamespace(src_block_id=a, dst_block_id=b) for a, b in copies or []]
        or None,
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda request_id: (blocks[request_id],)),
    )


def side(*, speculative: bool = False, **options: Any) -> SchedulerSide:
    return SchedulerSide(
        CaptureOptions(**options),
        group=0,
        block_size=SIZE,
        top_k=TOP_K,
        num_experts=EXPERTS,
        speculative=speculative,
    )


def uniform_counts(tokens: int) -> np.ndarray:
    """Counts [1, L, E] of `tokens` tokens that all chose experts 0 and 1."""
    counts = np.zeros((1, LAYERS, EXPERTS), dtype=np.int32)
    counts[..., :TOP_K] = tokens
    return counts


def report(plan: StepPlan, counts: np.ndarray | None = None, unseen: int = 0) -> StepReport:
    rows = sum(len(traced.slots) for traced in plan.traced)
    return StepReport(
        plan=plan,
        layers=(1, 3),
        active=np.array([2, 3], dtype=np.int32),
        unseen=unseen,
        prompt_counts=np.zeros((0, LAYERS, EXPERTS), np.int32) if counts is None else counts,
        decode_ids=np.tile(np.array([-1, -1] if unseen else [5, 6], np.int16), (rows, LAYERS, 1)),
    )


def test_a_prompt_completes_in_one_step() -> None:
    scheduler = side()
    request = Request("a", 10, {"do_remote_decode": True})
    scheduler.arrived(request)
    plan = scheduler.plan(step({"a": 10}, {"a": [7, 8, 9]}))
    assert plan.kind == "prefill"
    assert plan.requests == 1
    assert plan.finals == [Final("a", [7, 8, 9])]
    assert plan.fresh == [7, 8, 9]

    params = {"do_remote_prefill": True}
    assert scheduler.finished(request, params) is params
    scheduler.consume(report(plan, uniform_counts(10)))
    counts = decode_counts(params["eldr"])
    assert (counts.tokens, counts.covered) == (10, 10)


def test_a_chunked_prompt_completes_in_its_last_step_only() -> None:
    scheduler = side()
    request = Request("a", 10, {"do_remote_decode": True})
    scheduler.arrived(request)
    first = scheduler.plan(step({"a": 6}, {"a": [7, 8]}))
    assert first.finals == []
    assert first.fresh == [7, 8]
    request.num_computed_tokens = 6
    last = scheduler.plan(step({"a": 4}, {"a": [7, 8, 9]}))
    assert last.finals == [Final("a", [7, 8, 9])]
    assert last.fresh == [9]  # block 8 was begun in the first step and keeps its counts


def test_a_prefix_hit_leaves_its_blocks_alone() -> None:
    scheduler = side()
    scheduler.arrived(Request("a", 10, {"do_remote_decode": True}, num_computed_tokens=8))
    plan = scheduler.plan(step({"a": 2}, {"a": [7, 8, 9]}))
    assert plan.fresh == [9]
    assert plan.finals == [Final("a", [7, 8, 9])]


def test_counts_of_the_first_completion_stay_after_a_preemption() -> None:
    scheduler = side()
    request = Request("a", 4, {"eldr": {}})
    scheduler.arrived(request)
    plan = scheduler.plan(step({"a": 4}, {"a": [1]}))
    scheduler.consume(report(plan, uniform_counts(4)))
    request.num_computed_tokens, request.num_output_tokens = (
        0,
        3,
    )  # preempted, and now recomputed with its output
    again = scheduler.plan(step({"a": 7}, {"a": [5, 6]}))
    assert again.finals == []
    assert again.fresh == [5, 6]
    params = scheduler.finished(request, None)
    scheduler.consume(report(again))
    assert params is not None
    assert decode_counts(params["eldr"]).tokens == 4


def test_blocks_handed_out_and_copied_are_void() -> None:
    scheduler = side()
    scheduler.arrived(Request("a", 9, None, num_computed_tokens=8))
    scheduler.allocated([3, 4])
    assert scheduler.plan(step({"a": 1}, {"a": [3, 4, 5]}, copies=[(1, 2)])).fresh == [3, 4, 2, 5]
    assert scheduler.plan(step({}, {})).fresh == []


@pytest.mark.parametrize(
    ("scheduled", "kind"),
    [
        ({"d": 1}, "decode"),
        ({"d": 1, "h": 1}, "decode"),
        ({"p": 9}, "prefill"),
        ({"d": 1, "p": 9}, "mixed"),
        ({}, "decode"),
    ],
)
def test_kinds_of_step(scheduled: dict[str, int], kind: str) -> None:
    scheduler = side()
    scheduler.arrived(Request("d", 4, num_computed_tokens=6))
    scheduler.arrived(Request("p", 9))
    scheduler.arrived(
        Request("h", 8, num_computed_tokens=7)
    )  # after a hand-off: only the last prompt token is left
    blocks = {"d": [1, 2], "p": [3, 4, 5], "h": [6, 7]}
    assert scheduler.plan(step(scheduled, blocks)).kind == kind


def test_recomputing_after_a_preemption_is_no_decode_step() -> None:
    scheduler = side()
    scheduler.arrived(Request("a", 4, num_computed_tokens=4))
    assert scheduler.plan(step({"a": 8}, {"a": [1, 2, 3]})).kind == "prefill"


def test_drafts_are_a_decode_step_and_are_not_counted() -> None:
    scheduler = side(speculative=True)
    scheduler.arrived(Request("a", 4, num_computed_tokens=5))
    plan = scheduler.plan(step({"a": 3}, {"a": [1, 2]}, drafts={"a": [11, 12]}))
    assert plan.kind == "decode"
    assert plan.uncounted == [2 * SIZE + 1, 2 * SIZE + 2, 2 * SIZE + 3]


def test_the_trace_follows_the_output_tokens() -> None:
    scheduler = side()
    request = Request("a", 4, {"eldr": {"trace": True}})
    scheduler.arrived(request)
    scheduler.consume(report(scheduler.plan(step({"a": 4}, {"a": [6]})), uniform_counts(4)))
    for position in (4, 5):
        request.num_computed_tokens = position
        plan = scheduler.plan(step({"a": 1}, {"a": [6, 9]}))
        assert plan.traced == [Traced("a", position, [9 * SIZE + position - 4])]
        scheduler.consume(report(plan))
    request.num_output_tokens = 3
    params = scheduler.finished(request, None)
    scheduler.consume(None)
    assert params is not None
    decode = decode_counts(params["eldr_decode"])
    assert decode.tokens == 2
    assert decode.counts[:, 5].tolist() == [2, 2]
    assert "eldr_decode_ids" not in params


def test_an_engine_wide_trace_needs_no_asking() -> None:
    scheduler = side(trace="ids")
    request = Request("a", 4, num_computed_tokens=4, num_output_tokens=2)
    scheduler.arrived(request)
    plan = scheduler.plan(step({"a": 1}, {"a": [1, 2]}))
    params = scheduler.finished(request, None)
    scheduler.consume(report(plan))
    assert params is not None
    assert {"eldr_decode", "eldr_decode_ids"} <= set(params)


def test_a_bad_wish_is_not_traced(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = side()
    request = Request("a", 4, {"eldr": {"trace": "all"}}, num_computed_tokens=4)
    scheduler.arrived(request)
    assert scheduler.plan(step({"a": 1}, {"a": [1, 2]})).traced == []
    assert "'all'" in caplog.text


@pytest.mark.parametrize("counted", [0, 3])
def test_partial_coverage_is_said_and_none_is_no_payload(counted: int) -> None:
    scheduler = side()
    request = Request("a", 9, {"do_remote_decode": True})
    scheduler.arrived(request)
    plan = scheduler.plan(step({"a": 9}, {"a": [1, 2, 3]}))
    params: dict[str, Any] = {}
    scheduler.finished(request, params)
    scheduler.consume(report(plan, uniform_counts(counted)))
    if counted:
        assert decode_counts(params["eldr"]).covered == counted
    else:
        assert "eldr" not in params
    tally = scheduler.tally.take()
    assert tally is not None
    assert tally["payloads"] == {"partial" if counted else "missing": 1}


def test_more_tokens_than_the_prompt_has_are_no_payload() -> None:
    scheduler = side()
    request = Request("a", 4, {"do_remote_decode": True})
    scheduler.arrived(request)
    plan = scheduler.plan(step({"a": 4}, {"a": [1]}))
    params: dict[str, Any] = {}
    scheduler.finished(request, params)
    scheduler.consume(report(plan, uniform_counts(5)))
    assert params == {}


def test_requests_that_ask_for_nothing_or_fail_are_left_alone() -> None:
    scheduler = side()
    plain, aborted = Request("a", 4), Request("b", 4, {"do_remote_decode": True})
    aborted.status = SimpleNamespace(name="FINISHED_ABORTED")
    for request in (plain, aborted):
        scheduler.arrived(request)
    plan = scheduler.plan(step({"a": 4, "b": 4}, {"a": [1], "b": [2]}))
    assert scheduler.finished(plain, None) is None
    assert scheduler.finished(aborted, None) is None
    scheduler.consume(report(plan, uniform_counts(4)))
    assert scheduler.finished(plain, None) is None  # a second call is harmless


def test_covered_tokens() -> None:
    assert covered_tokens(uniform_counts(6)[0], TOP_K) == 6
    lopsided = uniform_counts(6)[0]
    lopsided[1, 0] -= 1
    assert covered_tokens(lopsided, TOP_K) is None
    assert covered_tokens(None, TOP_K) is None


def test_unseen_choices_are_an_alarm_and_no_observation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "steps.jsonl"
    scheduler = side(step_log=str(log))
    scheduler.arrived(Request("a", 4, num_computed_tokens=4))
    plan = scheduler.plan(step({"a": 1}, {"a": [1, 2]}))
    scheduler.consume(report(plan, unseen=8))
    tally = scheduler.tally.take()
    assert tally is not None
    assert (tally["unseen"], tally["active"]) == (8, [])
    assert "--enforce-eager" in caplog.text
    assert log.read_text() == ""


def test_step_log_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "steps.jsonl"
    scheduler = side(step_log=str(log), step_log_max_steps=2)
    scheduler.arrived(Request("a", 4, num_computed_tokens=4))
    for _ in range(3):
        scheduler.consume(report(scheduler.plan(step({"a": 1}, {"a": [1, 2]}))))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0]["active"] == [2, 3]
    assert (lines[0]["kind"], lines[0]["batch"], lines[0]["active_mean"]) == ("decode", 1, 2.5)
    tally = scheduler.tally.take()
    assert tally is not None
    assert tally["steps"] == {"decode": 3}
    assert tally["layers"] == [1, 3]
    assert scheduler.tally.take() is None


def test_pipeline_stages_merge_by_layer() -> None:
    plan = StepPlan(finals=[Final("a", [1])])

    def stage(layers: tuple[int, ...], value: int) -> PendingReport:
        n = len(layers)
        header = np.array([value] * n + [value], np.int32)
        arrays = header, np.full((1, n, EXPERTS), value, np.int32), np.full((2, n, TOP_K), value, np.int16)
        return PendingReport(plan, layers, lambda: arrays)

    merged = merge([stage((2, 3), 20), stage((0, 1), 10)])
    assert merged.layers == (0, 1, 2, 3)
    assert merged.active.tolist() == [10, 10, 20, 20]
    assert merged.unseen == 30
    assert merged.prompt_counts[0, :, 0].tolist() == [10, 10, 20, 20]
    assert merged.decode_ids[0, :, 0].tolist() == [10, 10, 20, 20]


def test_a_pending_report_is_pickled_as_arrays() -> None:
    import pickle

    header = np.array([4, 0], np.int32)
    pending = PendingReport(
        StepPlan(), (0,), lambda: (header, np.zeros((0, 1, 8), np.int32), np.zeros((0, 1, 2), np.int16))
    )
    again = pickle.loads(pickle.dumps(pending))
    np.testing.assert_array_equal(again.fetch()[0], header)
    assert again.layers == (0,)
