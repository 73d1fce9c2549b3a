"""Records: derived times, files that survive an interruption, summaries, and the metrics made from them."""

from pathlib import Path
from typing import Any

import pytest

from eldr.errors import ConfigError, EldrError
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RecordWriter, RequestRecord, read_records
from eldr.metrics.summary import spread, summarize
from eldr.types import Decision


def record(**fields: Any) -> RequestRecord:
    base: dict[str, Any] = {
        "request_id": "r",
        "path": "/v1/completions",
        "started_at": 1.7e9,
        "arrival_s": 10.0,
        "prefill_done_s": 10.5,
        "decided_s": 10.6,
        "first_token_s": 11.0,
        "finish_s": 13.0,
        "output_tokens": 5,
        "outcome": "ok",
    }
    return RequestRecord(**{**base, **fields})


def test_times_follow_their_definitions() -> None:
    assert record().ttft_s == 1.0
    assert record().tpot_s == 0.5
    assert record().duration_s == 3.0


@pytest.mark.parametrize(
    "fields",
    [{"first_token_s": None}, {"output_tokens": None}, {"output_tokens": 1}, {"output_tokens": 0}],
)
def test_a_time_per_token_that_was_not_measured_is_none(fields: dict[str, Any]) -> None:
    assert record(**fields).tpot_s is None


def test_ttft_without_a_first_token_is_none() -> None:
    assert record(first_token_s=None).ttft_s is None


def test_records_come_back_as_written_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    wrote = [record(), record(outcome="cancelled", output_tokens=None, similarity=0.25)]
    for one in wrote:
        writer = RecordWriter(str(path))
        writer.write(one)
        writer.close()
    assert list(read_records(path)) == wrote


def test_a_line_that_was_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(str(path))
    writer.write(record())
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"request_id": "half')
    assert list(read_records(path)) == [record()]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"request_id": 1}\n')
    with pytest.raises(EldrError, match=r"records\.jsonl, line 1: not a request record"):
        list(read_records(path))


def test_a_file_that_cannot_be_written_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="records: cannot write /proc/none/x"):
        RecordWriter("/proc/none/x")


def test_spread_is_numpys_and_leaves_missing_values_out() -> None:
    values = spread([1.0, None, 2.0, 3.0, 4.0])
    assert values is not None
    assert (values.count, values.mean, values.p50) == (4, 2.5, 2.5)
    assert values.p90 == pytest.approx(3.7)
    assert values.p99 == pytest.approx(3.97)
    assert spread([None]) is None


def test_a_summary_measures_only_whole_answers() -> None:
    records = [
        record(decode_worker="d0"),
        record(decode_worker="d1", arrival_s=12.0, first_token_s=14.0, finish_s=20.0),
        record(decode_worker="d1", outcome="broken", fallback="no_counts", first_token_s=99.0),
        record(outcome="refused", first_token_s=None),
    ]
    summary = summarize(records)
    assert summary.requests == 4
    assert summary.outcomes == {"broken": 1, "ok": 2, "refused": 1}
    assert summary.per_worker == {"d0": 1, "d1": 2}
    assert summary.fallbacks == {"no_counts": 1}
    assert summary.duration_s == 10.0
    assert summary.output_tokens == 10
    assert summary.ttft_s is not None
    assert summary.ttft_s.p50 == 1.5
    assert summarize([]).ttft_s is None


def test_metrics_follow_records_and_decisions() -> None:
    metrics = RouterMetrics()
    metrics.finished(record(fallback="no_counts"))
    metrics.finished(record(outcome="cancelled", first_token_s=None, prefill_done_s=None))
    metrics.decided(Decision(0, "d0", "jsq", in_flight=3, band_size=2), 1e-4)
    metrics.decided(Decision(0, "d0", "locality_band", 0, 1, similarity=0.9, best_similarity=0.9), 1e-4)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert value("eldr_requests_total", outcome="ok") == 1
    assert value("eldr_requests_total", outcome="cancelled") == 1
    assert value("eldr_fallbacks_total", reason="no_counts") == 1
    assert value("eldr_time_to_first_token_seconds_sum") == 1.0
    assert value("eldr_request_time_per_output_token_seconds_sum") == 0.5
    assert value("eldr_prefill_seconds_sum") == 0.5
    assert value("eldr_e2e_request_latency_seconds_sum") == 3.0
    assert value("eldr_decision_seconds_count") == 2
    assert value("eldr_band_size_sum") == 3
    assert value("eldr_similarity_count") == 1
    assert b"eldr_similarity_bucket" in metrics.exposition()


def test_gaps_below_ten_milliseconds_are_told_apart() -> None:
    metrics = RouterMetrics()
    metrics.itl.note_gaps([1.0])
    metrics.itl.note_gaps([1.0, 1.0005, 1.0025, 1.0065, 1.0135, 1.0225])
    counts = [
        metrics.registry.get_sample_value("eldr_inter_token_latency_seconds_bucket", {"le": le})
        for le in ("0.001", "0.0025", "0.005", "0.0075", "0.01")
    ]
    assert counts == [1, 2, 3, 4, 5]
