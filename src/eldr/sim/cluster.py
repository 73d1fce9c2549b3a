"""The cluster: arrivals -> prefill workers -> the live policy on the live pool -> decode workers."""

from collections.abc import Callable, Sequence

import numpy as np

from eldr.errors import NoWorkerError
from eldr.policy import Policy, create_policy
from eldr.pool import Reservation, Worker, WorkerPool
from eldr.sim.cost import StepCost
from eldr.sim.decode import DecodeWorker, steps_of
from eldr.sim.events import ARRIVAL, CHANGE, TRANSFER_END, EventLoop
from eldr.sim.placement import Placement
from eldr.sim.prefill import PrefillWorker, PrefixCache
from eldr.sim.products import RememberedProducts
from eldr.sim.records import BROKEN, REFUSED, Records, SimResult
from eldr.sim.requests import Requests, Rows
from eldr.sim.spec import ClusterSpec, on_ranks
from eldr.types import Matrix, PoolView, RoutingRequest

ATTEMPTS = 2
"""Times that a request may go to a decode worker, as in the live router."""


OnChange = Callable[[Sequence[int]], tuple[Matrix, Sequence[int]] | None]
"""Decode workers that are there -> centroids [n, D] and whose they are; None to leave them."""


class Cluster:
    """One run. centroids: float32 [n, D], row i for decode worker i; None for a policy without.

    on_change: asked for new centroids after a decode worker failed or joined; None: they stay as they are.
    """

    def __init__(
        self,
        requests: Requests,
        spec: ClusterSpec,
        policy: Policy,
        centroids: Matrix | None,
        cost: StepCost,
        on_change: OnChange | None = None,
    ) -> None:
        self._on_change = on_change
        self.loop, self.requests, self._policy, self._cost = EventLoop(), requests, policy, cost
        self.records = Records(requests, policy.name)
        self._rows = Rows(requests)
        self._signatures = _rows(requests.kinds.signatures, len(requests.kinds))
        self._labels = [str(label) or None for label in requests.kinds.labels]
        self._prefill_policy = create_policy("jsq", rng=np.random.default_rng(0))
        self._prefill_pool, self._decode_pool = _pool("p", spec.prefill), _pool("d", spec.decode)
        self._products = RememberedProducts(self._decode_pool, centroids)
        self._reservations: dict[int, Reservation] = {}
        self._prefill = [self._prefill_worker(spec) for _ in range(spec.prefill)]
        self._decode = [self._decode_worker(spec, k) for k in range(spec.decode)]
        self._generation = [0] * spec.decode
        self._plan_changes(spec)

    def run(self, in_flight: int | None, advance: Callable[[], None]) -> SimResult:
        """Serve all requests. in_flight: so many at once, the next as one ends, not by arrival."""
        self._advance, self._closed, self._next = advance, in_flight is not None, 0
        if in_flight is None:
            self._plan_arrival()
        else:
            for _ in range(min(in_flight, len(self.requests))):
                self._send_next()
        self.loop.run()
        return SimResult(self.records, steps_of(self._decode))

    def place(self, worker: int, placement: Placement) -> None:
        """A decode worker's experts move, as when EPLB rebalances: from its next step on."""
        self._decode[worker].place(on_ranks(placement, self._cost))

    def _plan_arrival(self) -> None:
        if self._next < len(self.requests):
            self.loop.at(float(self.requests.arrival_s[self._next]), ARRIVAL, self._arrive, self._next)
            self._next += 1

    def _arrive(self, request: int) -> None:
        self._plan_arrival()
        self._enter(request)

    def _send_next(self) -> None:
        if self._next < len(self.requests):
            self.records.arrival_s[self._next] = self.loop.now_s
            self.loop.at(self.loop.now_s, ARRIVAL, self._enter, self._next)
            self._next += 1

    def _enter(self, request: int) -> None:
        """Prefill on the least loaded worker."""
        if not self._prefill:
            self._decide(request)
            return
        decision = self._prefill_policy.select(RoutingRequest(""), self._prefill_pool.view())
        self._reservations[request] = self._prefill_pool.reserve(decision.worker_id)
        self.records.prefill_worker[request] = decision.worker
        self._prefill[decision.worker].offer(request)

    def _prefilled(self, request: int) -> None:
        self._reservations.pop(request).release()
        self.records.prefill_done_s[request] = self.loop.now_s
        self._decide(request)

    def _decide(self, request: int) -> None:
        """Let the policy choose, count the request on the worker, and hand its KV cache over."""
        view = self._view()
        try:
            decision = self._policy.select(self._routing_request(request), view)
        except NoWorkerError:
            self._ended(request, REFUSED)
            return
        prompt, output = self._rows.prompt[request], self._rows.output[request]
        self._reservations[request] = self._decode_pool.reserve(decision.worker_id, prompt + output)
        self.records.decided(request, self.loop.now_s, decision)
        transfer_s = self._cost.transfer_s(prompt) if self._prefill else 0.0
        worker = decision.worker
        arrival = (request, worker, self._generation[worker])
        self.loop.at(self.loop.now_s + transfer_s, TRANSFER_END, self._transferred, *arrival)

    def _transferred(self, request: int, worker: int, generation: int) -> None:
        if generation == self._generation[worker]:
            self._decode[worker].offer(request)
        else:
            self._retry(request)  # the worker failed before it had any output

    def _finished(self, request: int) -> None:
        self._reservations.pop(request).release()
        self._done()

    def _ended(self, request: int, outcome: int) -> None:
        """End a request that did not get its whole answer."""
        self.records.outcome[request] = outcome
        self.records.finish_s[request] = self.loop.now_s
        if (reservation := self._reservations.pop(request, None)) is not None:
            reservation.release()
        self._done()

    def _done(self) -> None:
        self._advance()
        if self._closed:
            self._send_next()

    def _view(self) -> PoolView:
        return self._products.attach(self._decode_pool.view())

    def _routing_request(self, request: int) -> RoutingRequest:
        kind, rows = self._rows.kind[request], self._rows
        return RoutingRequest(
            str(request),
            self._signatures[kind],
            self._labels[kind],
            rows.prompt[request],
            rows.output[request],
        )

    def _plan_changes(self, spec: ClusterSpec) -> None:
        seen: set[int] = set()
        for change in sorted(spec.changes, key=lambda change: change.at_s):
            if change.event == "join" and change.worker not in seen:
                self._decode_pool.set_available(f"d{change.worker}", False)
            seen.add(change.worker)
            self.loop.at(
                change.at_s, CHANGE, self._fail if change.event == "fail" else self._join, change.worker
            )

    def _join(self, worker: int) -> None:
        self._decode_pool.set_available(f"d{worker}", True)
        self._changed()

    def _fail(self, worker: int) -> None:
        """Streams with output end broken; what has none is sent once more from the start."""
        self._decode_pool.set_available(f"d{worker}", False)
        self._generation[worker] += 1
        with_output, without = self._decode[worker].fail()
        self._changed()
        for request in with_output:
            self._ended(request, BROKEN)
        for request in without:
            self._retry(request)

    def _changed(self) -> None:
        there: list[int] = np.flatnonzero(self._decode_pool.view().available).tolist()
        given = self._on_change(there) if self._on_change is not None and there else None
        if given is not None:
            centroids, workers = given
            self._products.give(centroids, [f"d{worker}" for worker in workers])

    def _retry(self, request: int) -> None:
        self.records.first_token_s[request] = np.nan
        if self.records.attempts[request] >= ATTEMPTS:
            self._ended(request, REFUSED)
            return
        self._reservations.pop(request).release()
        self._enter(request)

    def _prefill_worker(self, spec: ClusterSpec) -> PrefillWorker:
        cache = PrefixCache(spec.prefix_blocks, spec.block_tokens)
        batch = spec.prefill_batch_tokens
        return PrefillWorker(
            self.loop,
            self._cost,
            self.records,
            self._rows,
            cache,
            batch_tokens=batch,
            finished=self._prefilled,
        )

    def _decode_worker(self, spec: ClusterSpec, worker: int) -> DecodeWorker:
        placement = on_ranks(spec.placements[worker], self._cost) if spec.placements else self._cost.ranks
        return DecodeWorker(
            self.loop,
            self._cost,
            self.requests.kinds.experts.open(placement),
            self.records,
            self._rows,
            max_batch=spec.max_batch,
            kv_tokens=spec.kv_tokens,
            slowness=spec.slowness[worker] if spec.slowness else 1.0,
            finished=self._finished,
        )


def _pool(role: str, workers: int) -> WorkerPool:
    return WorkerPool(Worker(f"{role}{k}", f"sim://{role}{k}") for k in range(workers))


def _rows(signatures: Matrix | None, kinds: int) -> list[Matrix | None]:
    """The signature of each kind, always the same object, so that products with it can be remembered."""
    if signatures is None:
        return [None] * kinds
    return [row if row.any() else None for row in signatures]
