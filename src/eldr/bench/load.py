"""The load generator: streams completions from a router or an engine and times what comes back.

Open loop: every request is sent at its planned time, however slow the answers are, so that each policy meets
the same arrivals, prompts and lengths. Closed loop: a fixed number in flight, to find what rate the workers
sustain.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec
import numpy as np

from eldr.calibrate.prompts import Prompt
from eldr.errors import UpstreamError
from eldr.metrics.records import RequestRecord

Progress = Callable[[], None]

WORKER_HEADER = "x-eldr-decode-worker"
POLICY_HEADER = "x-eldr-policy"
LABEL_HEADER = "x-eldr-label"

GREEDY: dict[str, object] = {"temperature": 0.0, "repetition_penalty": 1.2, "ignore_eos": True}
"""Deterministic answers of a fixed length. A small model loops without the penalty; it must not have a seed
of its own (vLLM's CPU build dies of a seeded request under chunked prefill)."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a run. arrival_s: from the start of the run."""

    index: int
    arrival_s: float
    prompt: Prompt
    max_tokens: int


class Reply(msgspec.Struct, frozen=True):
    """What became of a planned request, for the client. The record's times are from the start of the run."""

    index: int
    prompt: str
    record: RequestRecord
    text: str


def plan_poisson(
    prompts: Sequence[Prompt], rate: float, max_tokens: int, rng: np.random.Generator
) -> list[Planned]:
    """The prompts in a random order, arriving as a Poisson process of `rate` requests a second."""
    arrivals = np.cumsum(rng.exponential(1.0 / rate, len(prompts)))
    order = rng.permutation(len(prompts))
    return [
        Planned(index, float(at), prompts[place], max_tokens)
        for index, (at, place) in enumerate(zip(arrivals, order, strict=True))
    ]


async def drive_open(
    url: str, model: str, plan: Iterable[Planned], progress: Progress = lambda: None
) -> list[Reply]:
    """Send each request at its arrival time; the replies in the order of the plan."""
    async with _client() as session, asyncio.TaskGroup() as group:
        sender = _Sender(session, url, model, progress)
        tasks = [group.create_task(sender.send_at_arrival(planned)) for planned in plan]
    return [task.result() for task in tasks]


async def drive_closed(
    url: str, model: str, plan: Iterable[Planned], concurrency: int, progress: Progress = lambda: None
) -> list[Reply]:
    """Keep `concurrency` requests in flight until the plan is done; arrival times are those of sending."""
    queue = iter(plan)

    async def work(sender: _Sender) -> list[Reply]:
        return [await sender.send_now(planned) for planned in queue]

    async with _client() as session, asyncio.TaskGroup() as group:
        sender = _Sender(session, url, model, progress)
        tasks = [group.create_task(work(sender)) for _ in range(concurrency)]
    replies = [reply for task in tasks for reply in task.result()]
    return sorted(replies, key=lambda reply: reply.index)


def raise_on_errors(replies: Sequence[Reply], what: str) -> None:
    """UpstreamError naming the first failed reply, if there is one."""
    errors = [reply.record.error for reply in replies if reply.record.error is not None]
    if errors:
        raise UpstreamError(f"{what}: {len(errors)} of {len(replies)} requests failed, first: {errors[0]}")


def _client() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))


class _Stream:
    """Reads the events of one streamed completion."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.first_token_s: float | None = None
        self.parts: list[str] = []
        self.output_tokens = 0
        self.ended = False

    def feed(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.ended = True
            return
        event = msgspec.json.decode(data)
        if "error" in event:
            raise UpstreamError(f"error in the stream: {event['error']}")
        for choice in event.get("choices", ()):
            self.first_token_s = self.first_token_s or self.now()
            self.parts.append(choice.get("text") or "")
        if event.get("usage"):
            self.output_tokens = event["usage"]["completion_tokens"]


class _Sender:
    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, progress: Progress) -> None:
        self.session, self.url, self.model, self.progress = session, f"{url}/v1/completions", model, progress
        self.start, self.started_at = asyncio.get_running_loop().time(), time.time()

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.start

    async def send_at_arrival(self, planned: Planned) -> Reply:
        await asyncio.sleep(planned.arrival_s - self.now())
        return await self._send(planned, planned.arrival_s)

    async def send_now(self, planned: Planned) -> Reply:
        return await self._send(planned, self.now())

    async def _send(self, planned: Planned, arrival_s: float) -> Reply:
        stream, error = _Stream(self.now), None
        headers: Mapping[str, str] = {}
        try:
            async with self.session.post(
                self.url, json=self._body(planned), headers=_headers(planned)
            ) as answer:
                headers = answer.headers
                if answer.status != 200:
                    raise UpstreamError(f"status {answer.status}: {(await answer.text())[:200]}")
                async for line in answer.content:
                    stream.feed(line)
            if not stream.ended:
                raise UpstreamError("the stream broke off")
        except (UpstreamError, aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as failure:
            error = str(failure) or type(failure).__name__
        self.progress()
        record = RequestRecord(
            request_id=str(planned.index),
            path="/v1/completions",
            model=self.model,
            stream=True,
            label=planned.prompt.label,
            started_at=self.started_at + arrival_s,
            arrival_s=arrival_s,
            first_token_s=stream.first_token_s,
            finish_s=self.now(),
            output_tokens=stream.output_tokens,
            decode_worker=headers.get(WORKER_HEADER),
            policy=headers.get(POLICY_HEADER),
            outcome="broken" if error else "ok",
            error=error,
        )
        return Reply(planned.index, planned.prompt.text, record, "".join(stream.parts))

    def _body(self, planned: Planned) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": planned.prompt.text,
            "max_tokens": planned.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **GREEDY,
        }


def _headers(planned: Planned) -> dict[str, str]:
    return {LABEL_HEADER: planned.prompt.label} if planned.prompt.label else {}
