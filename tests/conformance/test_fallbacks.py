"""Whatever is wrong with counts or transfer parameters, the client gets its answer, and it is counted."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eldr.metrics.records import read_records
from eldr.wire import encode_counts
from support.mock_engine import EXPERTS, LAYERS, TOP_K, domain_counts
from support.profiles import domain_profile
from support.stack import Stack, right_text, stack


def counted(experts: int = EXPERTS, tokens: int = 3, covered: int = 3) -> dict[str, Any]:
    counts = np.zeros((LAYERS, experts), np.uint32)
    counts[:, :TOP_K] = covered
    return encode_counts(counts, top_k=TOP_K, tokens=tokens, covered=covered)


async def answer_is_right(s: Stack, **extra: Any) -> None:
    body = {"prompt": "a law text", "max_tokens": 4, **extra}
    reply = await s.post(**body)
    assert (reply.status, reply.json["choices"][0]["text"]) == (200, right_text(body, 4))
    await s.settled()


async def test_requests_go_to_the_worker_of_their_experts(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    async with stack(policy="locality_band", profile=domain_profile(), records=str(records)) as s:
        for domain, worker in (("law", "d1"), ("code", "d0"), ("law", "d1")):
            reply = await s.post(prompt=f"some {domain} text", max_tokens=2)
            assert (reply.decode_worker, reply.headers["x-eldr-policy"]) == (worker, "locality_band")
        assert await s.metric("eldr_similarity_count") == 3
        assert await s.metric("eldr_band_size_sum") == 3
        assert await s.metric("eldr_decision_seconds_count") == 3
    record = next(read_records(records))
    assert record.similarity == record.best_similarity == pytest.approx(1.0)
    assert (record.band_size, record.in_flight, record.fallback) == (1, 0, None)
    assert (record.prompt_tokens, record.output_tokens, record.outcome) == (3, 2, "ok")


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"no_counts": True}, "no_counts"),
        ({"no_kv_params": True, "no_counts": True}, "no_kv_params"),
        ({"no_kv_params": True}, "no_kv_params"),
        ({"counts": "garbage"}, "bad_payload"),
        ({"counts": {"v": 99}}, "bad_payload"),
        ({"counts": {**counted(), "tokens": 4}}, "bad_payload"),
        ({"counts": counted(experts=16)}, "other_profile"),
        ({"counts": counted(tokens=8, covered=3)}, "partial_counts"),
        ({"counts": counted(covered=0, tokens=1)}, "partial_counts"),
        ({"counts": counted(covered=0, tokens=0)}, "empty_signature"),
    ],
)
async def test_a_bad_prefill_answer_means_load_only_routing(
    faults: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack(policy="locality_band", profile=domain_profile()) as s:
        for name, value in faults.items():
            setattr(s.prefill[0].faults, name, value)
        with caplog.at_level(logging.WARNING, "eldr"):
            await answer_is_right(s)
            await answer_is_right(s)
        assert await s.metric("eldr_fallbacks_total", reason=reason) == 2
        logged = [entry for entry in caplog.messages if f"fallback ({reason})" in entry]
        assert len(logged) == 1, "once a reason and interval"
        for request in (*s.decode[0].received, *s.decode[1].received):
            assert "eldr" not in request.body.get("kv_transfer_params", {})
            assert ("kv_transfer_params" in request.body) == ("no_kv_params" not in faults)


async def test_partly_covered_counts_still_route_when_they_cover_half() -> None:
    async with stack(policy="locality_band", profile=domain_profile()) as s:
        s.prefill[0].faults.counts = encode_counts(domain_counts("law", 2), top_k=TOP_K, tokens=4, covered=2)
        assert (await s.post(prompt="x", max_tokens=1)).decode_worker == "d1"


async def test_without_a_profile_the_band_policy_goes_by_load_and_says_so() -> None:
    async with stack(policy="locality_band") as s:
        await answer_is_right(s)
        assert await s.metric("eldr_fallbacks_total", reason="no_profile") == 1


async def test_requests_that_need_one_worker_go_by_load() -> None:
    async with stack(policy="locality_band", profile=domain_profile()) as s:
        reply = await s.post(prompt=["a law text", "another law text"], max_tokens=2)
        assert len(reply.json["choices"]) == 2
        assert reply.decode_worker == "d0"
        assert await s.metric("eldr_fallbacks_total", reason="prompt_list") == 1


async def test_policies_that_need_no_counts_have_no_fallback_without_them() -> None:
    async with stack(policy="round_robin") as s:
        s.prefill[0].faults.no_counts = True
        await answer_is_right(s)
        assert "eldr_fallbacks_total{" not in (await s.get("/metrics")).text


async def test_a_broken_cluster_worker_costs_only_its_first_request() -> None:
    async with stack(policy="locality_band", profile=domain_profile()) as s:
        await s.decode[1].stop()
        workers = [(await s.post(prompt="law", max_tokens=1)).decode_worker for _ in range(3)]
        assert workers == ["d0"] * 3
        assert await s.metric("eldr_upstream_errors_total", kind="refused") == 1
