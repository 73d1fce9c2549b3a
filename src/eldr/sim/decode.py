"""A decode worker: continuous batching, one token a request and step, as vLLM's.

Requests whose KV cache has arrived wait in order; at the end of a step those that are done leave and those
that fit join. Between two changes of the batch nothing happens that needs an event.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from eldr.sim.cost import StepCost
from eldr.sim.events import BATCH_BEGIN, BATCH_END, EventLoop
from eldr.sim.experts import Batch
from eldr.sim.placement import Placement
from eldr.sim.records import Records, WorkerSteps
from eldr.sim.requests import Rows
from eldr.sim.segment import Segment, plan


class DecodeWorker:
    """One engine.

    max_batch: most requests that decode together. kv_tokens: most tokens, prompts and whole outputs, that
    its running requests may hold; None for no limit. Room is taken for all of it at once: none is preempted.
    slowness: factor on step times. finished: called for each request whose last token is out.
    """

    def __init__(
        self,
        loop: EventLoop,
        cost: StepCost,
        experts: Batch,
        records: Records,
        rows: Rows,
        *,
        max_batch: int,
        kv_tokens: int | None,
        slowness: float,
        finished: Callable[[int], None],
    ) -> None:
        self._loop, self._cost, self._experts = loop, cost, experts
        self._records, self._rows = records, rows
        self._max_batch, self._kv_tokens, self._finished = max_batch, kv_tokens, finished
        self._slowness = slowness
        self._waiting: deque[int] = deque()
        self._running: list[tuple[int, int]] = []
        self._segment: Segment | None = None
        self._planned = self._plan_number = 0
        self._held_tokens = self._context = 0
        self.steps, self.tokens, self.active, self.busy_s = 0, 0, 0.0, 0.0
        self.by_batch: dict[int, tuple[int, float]] = {}

    def offer(self, request: int) -> None:
        """Take a request whose KV cache is here."""
        self._waiting.append(request)
        if len(self._waiting) > 1 or not self._fits(request):
            return  # joins with those before it, or when there is room
        if self._segment is None:
            self._plan_number += 1
            self._loop.at(self._loop.now_s, BATCH_BEGIN, self._end, self._plan_number)
        else:
            self._stop_after(self._segment.step_at(self._loop.now_s))

    def fail(self) -> tuple[list[int], list[int]]:
        """Lose everything. Returns the requests with output, and those without any."""
        now_s, running, waiting = self._loop.now_s, [r for _, r in self._running], list(self._waiting)
        if self._segment is not None:
            self._count(max(0, self._segment.step_at(now_s) - 1))
        for request in running:
            self._experts.remove(request, self._rows.kind[request])
        self._waiting.clear()
        self._running.clear()
        self._held_tokens = self._context = 0
        self._segment, self._plan_number = None, self._plan_number + 1
        begun = self._records.first_token_s
        with_output = [r for r in running if begun[r] <= now_s]
        return with_output, [r for r in running if begun[r] > now_s] + waiting

    def place(self, placement: Placement) -> None:
        """Move the experts when the step that runs is done."""
        self._experts.place(placement)
        if self._segment is not None:
            self._stop_after(self._segment.step_at(self._loop.now_s))

    def _begin(self) -> None:
        """Let in who fits, and decode until the next one is done."""
        joined = self._admit()
        if not self._running:
            self._segment = None
            return
        steps = self._running[0][0] - self.steps
        batch, now_s = len(self._running), self._loop.now_s
        self._start_s = now_s
        self._segment = plan(now_s, self._cost, self._experts, batch, self._context, steps, self._slowness)
        for request in joined:
            self._records.first_token_s[request] = self._segment.end_s(1)
        self._planned = self._segment.steps + 1
        self._stop_after(self._segment.steps)

    def _stop_after(self, steps: int) -> None:
        """End the segment after that many of its steps, unless it ends earlier anyway."""
        if self._segment is None or steps >= self._planned:
            return
        self._planned, self._plan_number = steps, self._plan_number + 1
        self._loop.at(self._segment.end_s(steps), BATCH_END, self._end, self._plan_number)

    def _end(self, plan_number: int) -> None:
        if plan_number != self._plan_number:
            return  # another plan took its place
        self._count(self._planned)
        while self._running and self._running[0][0] <= self.steps:
            self._leave(heapq.heappop(self._running)[1])
        self._begin()

    def _count(self, steps: int) -> None:
        """Note steps of this segment that are done."""
        if self._segment is None or not steps:
            return
        batch, active = len(self._running), self._segment.active_sum(steps)
        known = self.by_batch.get(batch, (0, 0.0))
        self.by_batch[batch] = known[0] + steps, known[1] + active
        self.steps += steps
        self.tokens += steps * batch
        self.active += active
        self.busy_s += self._segment.end_s(steps) - self._start_s
        self._context += steps * batch
        self._experts.advance(steps)

    def _admit(self) -> list[int]:
        joined = []
        while self._waiting and self._fits(self._waiting[0]):
            request = self._waiting.popleft()
            heapq.heappush(self._running, (self.steps + self._rows.output[request], request))
            self._held_tokens += self._size(request)
            self._context += self._rows.prompt[request]
            self._experts.add(request, self._rows.kind[request])
            joined.append(request)
        return joined

    def _leave(self, request: int) -> None:
        self._held_tokens -= self._size(request)
        self._context -= self._size(request)
        self._experts.remove(request, self._rows.kind[request])
        self._records.finish_s[request] = self._loop.now_s
        self._finished(request)

    def _fits(self, request: int) -> bool:
        if len(self._running) >= self._max_batch:
            return False
        return self._kv_tokens is None or self._held_tokens + self._size(request) <= self._kv_tokens

    def _size(self, request: int) -> int:
        return self._rows.prompt[request] + self._rows.output[request]


def steps_of(workers: Sequence[DecodeWorker]) -> WorkerSteps:
    """What each of them did."""
    return WorkerSteps(
        np.array([w.steps for w in workers]),
        np.array([w.tokens for w in workers]),
        np.array([w.active for w in workers]),
        np.array([w.busy_s for w in workers]),
        _added_up([w.by_batch for w in workers]),
    )


def _added_up(parts: Sequence[dict[int, tuple[int, float]]]) -> dict[int, tuple[int, float]]:
    total: dict[int, tuple[int, float]] = {}
    for part in parts:
        for batch, (steps, active) in part.items():
            known = total.get(batch, (0, 0.0))
            total[batch] = known[0] + steps, known[1] + active
    return dict(sorted(total.items()))
