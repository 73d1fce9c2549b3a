import json
from pathlib import Path

import pytest
from aiohttp import web

from eldr.bench.replay import plan_of, replay
from eldr.bench.results import PolicyRun
from eldr.bench.scrape import Steps
from eldr.bench.settings import Settings

from .fake_worker import FakeWorker
from .made_up import reply


class CountingWorker(FakeWorker):
    """A worker with counters and a step log: request n is one step with n active experts."""

    def __init__(self, log: Path, **options: int) -> None:
        super().__init__(**options)
        self.log, self.active = log, 0.0

    async def completions(self, request: web.Request) -> web.StreamResponse:
        number = int((await request.json())["prompt"].split()[1])
        self.active += number
        with self.log.open("a") as file:
            file.write(
                json.dumps({"t": 1.0, "kind": "decode", "batch": 2, "active_mean": float(number)}) + "\n"
            )
        return await super().completions(request)

    async def metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(
            text=f"# TYPE eldr_active_experts histogram\neldr_active_experts_sum {self.active}\n"
            f"eldr_active_experts_count {len(self.seen)}\n"
        )

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/metrics", self.metrics)]


async def test_each_workers_requests_go_to_one_engine_in_their_order(tmp_path) -> None:
    live = PolicyRun(
        "jsq",
        1,
        [reply(n, f"d{n % 2}", 0.01) for n in (4, 1, 3, 0, 2, 5)],
        {"d0": Steps(), "d1": Steps()},
        [],
    )
    assert [planned.index for planned in plan_of(live, "d1", 7)] == [1, 3, 5]
    settings = Settings(out=tmp_path, model=tmp_path, batch=2, max_tokens=3)
    engine = CountingWorker(tmp_path / "steps.jsonl", hold=2)
    async with engine.serve() as url:
        again = await replay(settings, url, engine.log, live, lambda: None)
    assert engine.most == 2
    assert [body["prompt"] for _, body, _ in engine.seen] == [f"prompt {n}" for n in (0, 2, 4, 1, 3, 5)]
    assert {body["max_tokens"] for _, body, _ in engine.seen} == {3}
    assert (again.policy, again.repeat) == ("jsq", 1)
    assert [(r.index, r.record.decode_worker) for r in again.replies] == [
        (0, "d0"), (2, "d0"), (4, "d0"), (1, "d1"), (3, "d1"), (5, "d1"),
    ]  # fmt: skip
    assert (again.steps["d0"].active_sum, again.steps["d1"].active_sum) == (6.0, 9.0)
    assert sorted((step.worker, step.active) for step in again.log) == [
        ("d0", 0.0), ("d0", 2.0), ("d0", 4.0), ("d1", 1.0), ("d1", 3.0), ("d1", 5.0),
    ]  # fmt: skip
    assert again.total.active_experts == pytest.approx(15 / 6)
