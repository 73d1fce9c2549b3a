"""Queues with a closed-form answer."""

import heapq
import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from eldr.sim import ClusterSpec, Kinds, Rates, StepCost, make_requests, poisson_arrivals, simulate
from eldr.sim.comparison import Interval, interval
from eldr.sim.cost import Moe, Prefill

REQUESTS, SEEDS = 10_000, 6

Floats = npt.NDArray[np.float64]
Waits = tuple[float, float]


class QueueCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Mean waiting time. load: of the servers.

    error: simulated / closed form - 1, over seeds. same_input: simulated / the plainest recursion over the
    same arrivals and service times - 1, which chance does not blur.
    """

    queue: str
    load: float
    closed_form_s: float
    error: Interval
    same_input: Interval


def check_queues() -> list[QueueCheck]:
    """M/D/1 in prefill (Pollaczek and Khinchine), M/M/c in decode (Erlang's C)."""
    checks = []
    for load in (0.5, 0.8):
        checks.append(_check("M/D/1", load, _m_d_1, load * SERVICE_S / (2 * (1 - load))))
        checks.append(
            _check(f"M/M/{SERVERS}", load, _m_m_c, _delayed(load) * MEAN_S / (SERVERS * (1 - load)))
        )
    return checks


def _check(queue: str, load: float, waits: Callable[[float, int], Waits], closed_form_s: float) -> QueueCheck:
    pairs = np.array([waits(load, seed) for seed in range(SEEDS)])
    error, same = (
        interval((pairs[:, 0] / closed_form_s - 1).tolist()),
        interval((pairs[:, 0] / pairs[:, 1] - 1).tolist()),
    )
    assert error is not None
    assert same is not None
    return QueueCheck(queue=queue, load=load, closed_form_s=closed_form_s, error=error, same_input=same)


SERVICE_S = 0.1
"""Of each prompt, on one prefill worker that takes one at a time."""


def _m_d_1(load: float, seed: int) -> Waits:
    """Mean wait simulated, and by recursion."""
    arrivals = poisson_arrivals(REQUESTS, load / SERVICE_S, np.random.default_rng(seed))
    cost = _cost(step_us=1.0, prefill_us=SERVICE_S * 1e6)
    spec = ClusterSpec(prefill=1, decode=1, prefill_batch_tokens=1)
    requests = make_requests(_kind(), arrivals, np.zeros(REQUESTS, int), 1, 1)
    records = simulate(requests, spec, "jsq", None, cost).records
    wait_s = float((records.prefill_done_s - records.arrival_s).mean()) - SERVICE_S
    return wait_s, recursion(arrivals, np.full(REQUESTS, SERVICE_S), 1)


SERVERS, STEPS, STEP_S = 8, 200, 0.005
MEAN_S = STEPS * STEP_S
"""A decode worker with room for so many requests; lengths are geometric, and steps short against them."""


def _m_m_c(load: float, seed: int) -> Waits:
    """The same. One that finds room waits half a step, for the next to begin, which is taken off again."""
    rng = np.random.default_rng(seed)
    arrivals = poisson_arrivals(REQUESTS, load * SERVERS / MEAN_S, rng)
    lengths = rng.geometric(1 / STEPS, REQUESTS)
    requests = make_requests(_kind(), arrivals, np.zeros(REQUESTS, int), 1, lengths)
    spec = ClusterSpec(prefill=0, decode=1, max_batch=SERVERS)
    records = simulate(requests, spec, "jsq", None, _cost(step_us=STEP_S * 1e6)).records
    half_a_step_s = (1 - _delayed(load)) * STEP_S / 2
    wait_s = float((records.first_token_s - records.arrival_s).mean()) - STEP_S - half_a_step_s
    return wait_s, recursion(arrivals, lengths.astype(np.float64) * STEP_S, SERVERS)


def _delayed(load: float) -> float:
    """Erlang's C: the share of requests that find all servers busy."""
    offered = load * SERVERS
    tail = offered**SERVERS / math.factorial(SERVERS) / (1 - load)
    return tail / (sum(offered**n / math.factorial(n) for n in range(SERVERS)) + tail)


def recursion(arrival_s: Floats, service_s: Floats, servers: int) -> float:
    """Mean wait for the first server to be free, in order of arrival (Kiefer and Wolfowitz)."""
    free, total = [0.0] * servers, 0.0
    for now_s, length_s in zip(arrival_s.tolist(), service_s.tolist(), strict=True):
        start_s = max(now_s, heapq.heappop(free))
        total += start_s - now_s
        heapq.heappush(free, start_s + length_s)
    return total / len(arrival_s)


def _kind() -> Kinds:
    return Kinds(np.array([""]), Rates(np.full((1, 1, 4), 0.5, np.float32)))


def _cost(step_us: float, prefill_us: float = 0.0) -> StepCost:
    moe, prefill = Moe(fixed_us=step_us, active_us=0.0), Prefill(fixed_us=prefill_us)
    return StepCost(name="queue", gpu="", model="", layers=1, experts=4, top_k=2, moe=moe, prefill=prefill)
