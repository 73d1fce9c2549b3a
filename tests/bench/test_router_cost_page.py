"""The page says what the report says, target by target."""

from typing import Any

from eldr.bench.router_cost_page import page, summary, verdicts

Cpu = float | None


def row(router: str, connections: int, chunk: Cpu, request: Cpu, ttft: float) -> dict[str, Any]:
    return {
        "router": router,
        "connections": connections,
        "cpu_per_chunk_us": chunk,
        "cpu_per_request_us": request,
        "peak_mib": None if chunk is None else 50.0,
        "ttft_ms": [ttft] * 10,
    }


ROWS = [
    row("none, hand-off", 64, None, None, 1.0),
    row("vllm-router", 64, 30.0, 200.0, 3.0),
    row("eldr jsq", 64, 15.0, 240.0, 2.0),
    row("eldr jsq", 64, 17.0, 240.0, 2.0),
    row("eldr jsq", 64, 90.0, 240.0, 2.0),
    row("none, hand-off", 1024, None, None, 1.0),
    row("vllm-router", 1024, 30.0, 200.0, 3.0),
    row("eldr jsq", 1024, 21.0, 140.0, 4.0),
]
REPORT = {
    "machine": {
        "processor": "P",
        "cores": 2,
        "memory_gib": 4,
        "system": "Linux",
        "python": "3.11",
        "versions": {"eldr": "1"},
    },
    "plan": {"repeats": 3, "window_s": 1.0, "requests": 10},
    "peers": {"vllm-router": "0.1.17"},
    "load_average": 0.1,
    "chunks_per_s": 100,
    "one_token_rate": 10.0,
    "rows": ROWS,
}


def test_medians_over_repeats_and_added_times() -> None:
    cell = summary(REPORT)["eldr jsq", 64]
    assert (cell["cpu_per_chunk_us"], cell["p50_added"], cell["p99_added"]) == (17.0, 1.0, 1.0)


def test_targets_are_judged_by_their_worst_ratio() -> None:
    at = "of vllm-router's, at 64, 1024 connections"
    assert verdicts(summary(REPORT)) == [
        f"- eldr jsq: CPU a streamed chunk, {at}: 0.57, 0.70 (target: at most 0.7): reached.",
        f"- eldr jsq: CPU a request of one token, {at}: 1.20, 0.70 (target: at most 0.8): **not reached**.",
        f"- eldr jsq: p99 of the TTFT added, {at}: 0.50, 1.50 (target: at most 1): **not reached**.",
        "- eldr jsq: CPU a streamed chunk at 1024 connections, of that at 64: 1.24 (target: at most 1.2): "
        "**not reached**.",
    ]


def test_what_cannot_be_compared_is_said_so() -> None:
    rows = [{**each, "ttft_ms": [0.5] * 10} if each["router"] == "vllm-router" else each for each in ROWS]
    (line,) = [line for line in verdicts(summary({**REPORT, "rows": rows})) if "TTFT" in line]
    assert line.endswith("not comparable, not comparable (target: at most 1): not measured.")


def test_the_page_has_a_line_for_each_router_and_size() -> None:
    text = page(REPORT)
    assert "| eldr jsq | 64 | 17.0 | 240 | 1.00 | 1.00 | 50 |" in text
    assert "| none, hand-off | 64 | - | - | 0.00 | 0.00 | - |" in text
