"""Does a prefill worker give expert counts, and of the profile's model? Asked once, when it is let in."""

import asyncio
import logging

import msgspec
from multidict import CIMultiDict

from eldr.errors import ConfigError, PayloadError, UpstreamError
from eldr.pool import Worker
from eldr.proxy.handoff import PrefillAnswer, encoded, parse, prefill_leg, read_prefill
from eldr.proxy.headers import field_lines
from eldr.proxy.models import served_models
from eldr.proxy.signer import Signer
from eldr.proxy.upstream import Upstream

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 60.0
"""An engine's first forward pass may take long."""


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
        is passed over with a warning. So is one without transfer parameters: decode workers prefill again.
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
        """The answer to a prompt of one token. Its KV block is held until the engine's lease ends (30 s)."""
        cards = await served_models(self._upstream, worker, PROBE_TIMEOUT_S)
        body = {"prompt": [1], "temperature": 0} | ({"model": cards[0]["id"]} if cards else {})
        headers = field_lines(CIMultiDict({"Content-Type": "application/json"}))
        leg = encoded(prefill_leg(parse(msgspec.json.encode(body))))
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
        if answer.kv_params is None:
            text = "prefill worker %s gives no transfer parameters, so decode workers will prefill again; %s"
            log.warning(text, worker.id, "check its --kv-transfer-config")
