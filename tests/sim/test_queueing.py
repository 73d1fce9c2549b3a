"""Waiting times against closed forms: M/D/1 in prefill and M/M/c in decode, and Little's law."""

import math

import numpy as np
import pytest

from eldr.sim import ClusterSpec, poisson_arrivals, simulate

from .small import requests, seconds

N = 3000


def test_prefill_waits_as_an_m_d_1_queue() -> None:
    """Mean wait rho x s / (2 (1 - rho)), Pollaczek and Khinchine."""
    load, service_s = 0.5, 0.1
    arrivals = poisson_arrivals(N, load / service_s, np.random.default_rng(5))
    spec = ClusterSpec(prefill=1, decode=1, prefill_batch_tokens=1)
    cost = seconds(prefill=service_s, fixed=1e-9)
    records = simulate(requests(arrivals), spec, "jsq", None, cost).records
    wait_s = (records.prefill_done_s - records.arrival_s - service_s).mean()
    assert wait_s == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.1)


def test_decode_waits_as_an_m_m_c_queue() -> None:
    """A batch of 4 whose steps are short, with lengths that forget: Erlang's C."""
    servers, load, mean_steps, step_s = 4, 0.6, 50, 0.02
    rng = np.random.default_rng(1)
    arrivals = poisson_arrivals(N, load * servers / (mean_steps * step_s), rng)
    lengths = rng.geometric(1 / mean_steps, N)
    spec = ClusterSpec(prefill=0, decode=1, max_batch=servers)
    run = simulate(requests(arrivals, lengths), spec, "jsq", None, seconds(fixed=step_s))
    offered = load * servers
    tail = offered**servers / math.factorial(servers) / (1 - load)
    busy = tail / (sum(offered**n / math.factorial(n) for n in range(servers)) + tail)
    expected_s = busy * mean_steps * step_s / (servers * (1 - load))
    boundary_s = step_s / 2  # one that finds room waits for the step to end; one that finds none does not
    wait_s = (run.records.first_token_s - run.records.arrival_s).mean() - step_s
    assert expected_s * 0.85 < wait_s < expected_s * 1.15 + boundary_s
    in_system = (run.records.finish_s - run.records.arrival_s).sum() / run.summary.duration_s
    running = run.summary.mean_batch * run.steps.busy_s[0] / run.summary.duration_s
    waiting = (run.records.first_token_s - run.records.arrival_s - step_s).sum() / run.summary.duration_s
    assert in_system == pytest.approx(running + waiting, rel=1e-3)
