"""Does a prefill worker give expert counts, and of the profile's model? Asked once, when it is let in."""

import asyncio
import logging

import msgspec
from multidict import CIMultiDict

from eldr.errors import ConfigError, PayloadError, UpstreamError
from eldr.pool import Worker
from eldr.proxy.handoff import PrefillAnswer, read_prefill
from eldr.proxy.headers import field_lines
from eldr.proxy.models import served_models
from eldr.proxy.signer import Signer
from eldr.proxy.upstream import Upstream

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 60.0
"""An engine's first forward pass may take long."""


COUNTS_ONLY = {"prompt": [1], "temperature": 0, "max_tokens": 1, "kv_transfer_params": {"eldr": {}}}
"""With the parameters of a hand-off, vLLM would keep the KV cache for 30 s, and poll for who takes it."""


class CountsProbe:
    """Prefill workers that have answered a prompt of one token as they should, by name."""

    def __init__(self, upstream: Upstream, signer: Signer) -> None:
        self._upstream, self._signer = upstream, signer
        self._passed: dict[str, Worker] = {}

    def forget(self, worker_id: str) -> None:
        """Ask again a worker that takes this name."""
        self._passed.pop(worker_id, None)

    async def check(self, worker: Worker) -> None:
        """Ask a worker for the counts of a prompt of one token, unless it has told them before.

        Raises ConfigError when none come, ProfileError when they are of another model than the profile,
        UpstreamError for no answer. A worker that refuses the question, for example because it wants a key,
        is passed over with a warning.
        """
        if self._passed.get(worker.id) == worker:
            return
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                answer = await self._ask(worker)
        except TimeoutError:
            raise UpstreamError(
                f"prefill worker {worker.id} ({worker.url}) did not prefill one token within "
                f"{PROBE_TIMEOUT_S:g} s; look at its log"
            ) from None
        if answer is not None:
            self._check_answer(worker, answer)
        self._passed[worker.id] = worker

    async def _ask(self, worker: Worker) -> PrefillAnswer | None:
        """The answer to a prompt of one token that no decode worker will get: the engine holds nothing."""
        cards = await served_models(self._upstream, worker, PROBE_TIMEOUT_S)
        body = COUNTS_ONLY | ({"model": cards[0]["id"]} if cards else {})
        headers = field_lines(CIMultiDict({"Content-Type": "application/json"}))
        leg = [msgspec.json.encode(body)]
        async with self._upstream.post(worker, "/v1/completions", leg, headers) as response:
            data = await response.read()
            if response.status == 200:
                return read_prefill(data)
        log.warning("worker %s does not answer a probe for expert counts (%d)", worker.id, response.status)
        return None

    def _check_answer(self, worker: Worker, answer: PrefillAnswer) -> None:
        if answer.counts is None:
            raise ConfigError(
                f"prefill worker {worker.id} ({worker.url}) gives no expert counts: its model is not a "
                "mixture of experts, or it runs without ELDR's connector; load the connector, or leave "
                "--profile out"
            )
        try:
            self._signer.counts(answer.counts)
        except PayloadError as error:
            raise ConfigError(f"prefill worker {worker.id}: {error}") from None
