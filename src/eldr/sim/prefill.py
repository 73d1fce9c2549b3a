"""A prefill worker: a queue, steps of several prompts, and a prefix cache."""

from collections import OrderedDict, deque
from collections.abc import Callable

from eldr.sim.cost import StepCost
from eldr.sim.events import PREFILL_END, EventLoop
from eldr.sim.records import Records
from eldr.sim.requests import Rows


class PrefixCache:
    """KV blocks of earlier prompts, least recently used out first, of a prompt its end, as vLLM's.

    capacity: blocks, 0 for no cache. A prompt is a shared text, which others may begin with, and a rest
    of its own, which no other prompt hits but which takes room all the same.
    """

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity, self.block_tokens = capacity, block_tokens
        self.used = 0
        self._texts: OrderedDict[tuple[int, int], int] = OrderedDict()

    def hit_tokens(self, prefix: int, prefix_tokens: int, prompt_tokens: int) -> int:
        """Tokens of a prompt whose KV is here, in whole blocks; its last token is always computed."""
        blocks = self._texts.get((0, prefix), 0) if prefix >= 0 else 0
        longest = min(prefix_tokens, prompt_tokens - 1) // self.block_tokens
        return min(blocks, longest) * self.block_tokens

    def keep(self, request: int, prefix: int, prefix_tokens: int, prompt_tokens: int) -> None:
        """Put a prompt's whole blocks in. The rest of a prompt is older than the text that it begins with."""
        if not self.capacity:
            return
        shared = prefix_tokens // self.block_tokens if prefix >= 0 else 0
        self._put((1, request), prompt_tokens // self.block_tokens - shared)
        self._put((0, prefix), max(shared, self._texts.get((0, prefix), 0)) if shared else 0)
        self._evict()

    def _put(self, text: tuple[int, int], blocks: int) -> None:
        if blocks <= 0:
            return
        self.used += blocks - self._texts.pop(text, 0)
        self._texts[text] = blocks

    def _evict(self) -> None:
        while self.used > self.capacity:
            text, blocks = self._texts.popitem(last=False)
            left = max(0, blocks - (self.used - self.capacity))
            self.used -= blocks - left
            if left:
                self._texts[text] = left
                self._texts.move_to_end(text, last=False)


class PrefillWorker:
    """One engine. A step takes waiting prompts in order up to `batch_tokens` new tokens, and at least one.

    finished: called with each request of a step when that ends.
    """

    def __init__(
        self,
        loop: EventLoop,
        cost: StepCost,
        records: Records,
        rows: Rows,
        cache: PrefixCache,
        *,
        batch_tokens: int,
        finished: Callable[[int], None],
    ) -> None:
        self._loop, self._cost, self._records, self._rows, self._cache = loop, cost, records, rows, cache
        self._batch_tokens, self._finished = batch_tokens, finished
        self._waiting: deque[int] = deque()
        self._running: list[int] = []
        self._step = 0

    def offer(self, request: int) -> None:
        """Take a request."""
        self._waiting.append(request)
        if not self._running:
            self._begin()

    def fail(self) -> list[int]:
        """Lose everything, the cache too. Returns the requests that were here."""
        lost = [*self._running, *self._waiting]
        self._running, self._step = [], self._step + 1
        self._waiting.clear()
        self._cache = PrefixCache(self._cache.capacity, self._cache.block_tokens)
        return lost

    def _begin(self) -> None:
        tokens, pairs = 0, 0.0
        while self._waiting:
            prompt, cached = self._tokens(self._waiting[0])
            if self._running and tokens + prompt - cached > self._batch_tokens:
                break
            tokens += prompt - cached
            pairs += (prompt * (prompt + 1) - cached * (cached + 1)) / 2
            request = self._waiting.popleft()
            self._records.cached_tokens[request] = cached
            self._running.append(request)
        if self._running:
            end_s = self._loop.now_s + self._cost.prefill_s(tokens, pairs)
            self._loop.at(end_s, PREFILL_END, self._end, self._step)

    def _end(self, step: int) -> None:
        if step != self._step:
            return  # the worker failed meanwhile
        done, self._running = self._running, []
        rows = self._rows
        for i in done:
            self._cache.keep(i, rows.prefix[i], rows.prefix_tokens[i], rows.prompt[i])
        self._begin()
        for request in done:
            self._finished(request)

    def _tokens(self, request: int) -> tuple[int, int]:
        """Of a prompt: all, and those in the cache."""
        rows, prompt = self._rows, self._rows.prompt[request]
        return prompt, self._cache.hit_tokens(rows.prefix[request], rows.prefix_tokens[request], prompt)
