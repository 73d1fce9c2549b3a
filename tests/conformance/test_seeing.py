"""What an operator sees of requests: the decision log, and their ids in log lines."""

import json
import logging
from pathlib import Path

from eldr.metrics.decisions import read_decisions
from eldr.metrics.logs import JsonFormatter
from support.profiles import domain_profile
from support.stack import COMPLETIONS, stack

LAW = {"prompt": "a law text", "max_tokens": 5}


async def test_decision_log_has_what_the_policy_saw_and_what_came_of_it(tmp_path: Path) -> None:
    log = {"decision_log": str(tmp_path / "d.jsonl")}
    async with stack(policy="locality_band", profile=domain_profile(), observe=log) as s:
        await s.post(COMPLETIONS, {"X-Request-Id": "mine"}, **LAW)
        await s.post(COMPLETIONS, **LAW, stream=True)
        await s.settled()
        first, second = read_decisions(tmp_path / "d.jsonl")
    assert first.request_id == "mine"
    assert first.worker_ids == ("d0", "d1")
    assert first.similarities == [0.0, 1.0]
    assert (first.decode_worker, first.in_flight, first.available) == ("d1", [0, 0], [True, True])
    assert (first.prompt_tokens, first.max_tokens, first.output_tokens) == (3, 5, 5)
    assert second.first_token_s is not None
    assert second.arrival_s <= second.decided_s <= second.first_token_s <= (second.finish_s or 0)


async def test_a_refused_connection_is_a_decision_of_its_own(tmp_path: Path) -> None:
    async with stack(observe={"decision_log": str(tmp_path / "d.jsonl")}) as s:
        await s.decode[0].stop()
        assert (await s.post(COMPLETIONS, **LAW)).status == 200
        first, second = read_decisions(tmp_path / "d.jsonl")
    assert (first.decode_worker, first.outcome) == ("d0", None)
    assert (second.decode_worker, second.outcome, second.available) == ("d1", "ok", [False, True])


async def test_log_lines_of_a_request_carry_its_id() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(JsonFormatter().format(record))  # type: ignore[method-assign]
    logging.getLogger("eldr").addHandler(handler)
    try:
        async with stack() as s:
            await s.decode[0].stop()
            await s.post(COMPLETIONS, {"X-Request-Id": "mine"}, **LAW)
    finally:
        logging.getLogger("eldr").removeHandler(handler)
    refused = [json.loads(line) for line in lines if "trying the next worker" in line]
    assert [line["request_id"] for line in refused] == ["mine"]
