"""Batches put together again from a made-up run whose batches are known."""

import msgspec
import numpy as np
import pytest

from eldr.bench.results import PolicyRun
from eldr.bench.scrape import Steps
from eldr.bench.sim_live_batches import live_batches
from eldr.bench.sim_validity_live import step_times
from eldr.bench.steplog import Step
from eldr.sim import Rates

from .made_up import reply

LAG_S = 0.02


def made_up_run() -> tuple[PolicyRun, np.ndarray]:
    """One worker, steps of 0.1 s; request n begins at step 3n, makes 10 tokens, and uses two experts."""
    rates = np.zeros((5, 1, 10), np.float32)
    replies, members = [], [set[int]() for _ in range(22)]
    for n in range(5):
        rates[n, 0, n : n + 2] = 1.0
        for step in range(3 * n, 3 * n + 10):
            members[step].add(n)
        whole = reply(n, "d0", 0.1)
        times = {"first_token_s": 0.1 * (3 * n) + LAG_S, "finish_s": 0.1 * (3 * n + 9) + LAG_S}
        replies.append(msgspec.structs.replace(whole, record=msgspec.structs.replace(whole.record, **times)))
    log = [
        Step(0.1 * step, "d0", len(batch), float((rates[list(batch)].sum(axis=0) > 0).sum()))
        for step, batch in enumerate(members)
    ]
    return PolicyRun("jsq", 0, replies, {"d0": Steps()}, log), rates


def test_the_batch_of_every_step_is_found_through_the_clients_lag() -> None:
    run, rates = made_up_run()
    pairs, share = live_batches(run, list(range(5)), Rates(rates))
    assert share == 1.0
    assert pairs[:, 1] == pytest.approx(pairs[:, 0])
    assert pairs[:, 0].max() == 5.0


def test_a_step_whose_batch_is_not_known_is_left_out() -> None:
    run, rates = made_up_run()
    odd = msgspec.structs.replace(run.log[4], batch=9)
    run = msgspec.structs.replace(run, log=[*run.log[:4], odd, *run.log[5:]])
    pairs, share = live_batches(run, list(range(5)), Rates(rates))
    assert (len(pairs), share) == (21, pytest.approx(21 / 22))


def test_step_times_are_those_between_steps_that_follow_each_other() -> None:
    run, _ = made_up_run()
    later = [msgspec.structs.replace(step, at_s=step.at_s + 50.0) for step in run.log]
    x, step_us, worker = step_times(msgspec.structs.replace(run, log=[*run.log, *later]))
    assert step_us == pytest.approx(1e5)
    assert len(step_us) == len(worker) == 21
    assert x[0].tolist() == [1.0, run.log[1].active, run.log[1].batch]
