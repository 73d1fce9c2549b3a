"""A decode worker, step by step, against times worked out by hand and by a plain loop."""

import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.sim import ClusterSpec, simulate

from .small import pairs_of_experts, requests, seconds

ONE = ClusterSpec(prefill=0, decode=1)


def test_a_request_alone_takes_a_step_a_token() -> None:
    result = simulate(requests([2.0], output_tokens=5), ONE, "jsq", None, seconds(fixed=0.5))
    records = result.records
    assert records.first_token_s[0] == pytest.approx(2.5)
    assert records.finish_s[0] == pytest.approx(4.5)
    assert records.tpot_s[0] == pytest.approx(0.5)
    assert records.ttft_s[0] == pytest.approx(0.5)
    assert (result.steps.steps[0], result.steps.tokens[0]) == (5, 5)
    assert result.steps.busy_s[0] == pytest.approx(2.5)


def test_one_that_arrives_joins_at_the_end_of_the_step() -> None:
    """Steps of 1 s alone, 1.5 s with two: the second comes at 1.2 and joins at 2."""
    result = simulate(
        requests([0.0, 1.2], output_tokens=[4, 2]), ONE, "jsq", None, seconds(fixed=0.5, sequence=0.5)
    )
    assert result.records.first_token_s.tolist() == pytest.approx([1.0, 3.5])
    assert result.records.finish_s.tolist() == pytest.approx([5.0, 5.0])
    assert result.summary.mean_batch == pytest.approx(6 / 4)


def test_context_makes_each_step_longer() -> None:
    """0.1 s a token of context; prompt of 10: steps of 1.0, 1.1, 1.2 s."""
    result = simulate(requests([0.0], output_tokens=3), ONE, "jsq", None, seconds(context=0.1))
    assert result.records.first_token_s[0] == pytest.approx(1.0)
    assert result.records.finish_s[0] == pytest.approx(3.3)


def test_a_slow_worker_takes_longer_for_every_step() -> None:
    spec = ClusterSpec(prefill=0, decode=2, slowness=(1.0, 2.5))
    records = simulate(requests([0.0, 0.0], 3), spec, "round_robin", None, seconds(context=0.1)).records
    assert records.finish_s.tolist() == pytest.approx([3.3, 2.5 * 3.3])


def test_active_experts_are_those_of_the_union() -> None:
    """Kinds 0 and 1 share no expert: 2 active alone, 4 together; two of one kind stay at 2."""
    kinds = pairs_of_experts(2)
    for second, active in ((1, 4.0), (0, 2.0)):
        result = simulate(
            requests([0.0, 0.0], 3, kind=[0, second], kinds=kinds), ONE, "jsq", None, seconds(active=0.25)
        )
        assert result.steps.active_experts == pytest.approx(active)
        assert result.records.finish_s[0] == pytest.approx(3 * 0.25 * active)


@pytest.mark.parametrize(
    "spec",
    [
        ClusterSpec(prefill=0, decode=1, max_batch=1),
        ClusterSpec(prefill=0, decode=1, kv_tokens=14),
    ],
)
def test_who_does_not_fit_waits_in_order(spec: ClusterSpec) -> None:
    result = simulate(requests([0.0, 0.0, 0.0], 2), spec, "jsq", None, seconds(fixed=1.0))
    assert result.records.finish_s.tolist() == pytest.approx([2.0, 4.0, 6.0])


def test_a_request_larger_than_a_worker_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"12 tokens.*room for 11"):
        simulate(
            requests([0.0], 2), ClusterSpec(prefill=0, decode=1, kv_tokens=11), "jsq", None, seconds(fixed=1)
        )


def test_events_give_what_a_loop_over_all_steps_gives() -> None:
    """Random arrivals and lengths, all parts of the cost, against the plainest simulation there is."""
    rng = np.random.default_rng(3)
    n, kinds = 60, pairs_of_experts(4)
    arrival_s = np.sort(rng.uniform(0, 60, n))
    output, prompt = rng.integers(1, 20, n), rng.integers(1, 30, n)
    kind = rng.integers(0, 4, n)
    cost = seconds(fixed=0.1, active=0.05, sequence=0.02, context=0.001)
    spec = ClusterSpec(prefill=0, decode=1, max_batch=6, kv_tokens=160)
    run = requests(arrival_s, output.tolist(), prompt.tolist(), kind.tolist(), kinds=kinds)
    records = simulate(run, spec, "jsq", None, cost).records

    now, waiting, batch, coming = 0.0, [], {}, list(range(n))
    first, finish = np.zeros(n), np.zeros(n)
    while coming or waiting or batch:
        if not batch and not waiting:
            now = arrival_s[coming[0]]
        while coming and arrival_s[coming[0]] <= now:
            waiting.append(coming.pop(0))
        held = sum(prompt[i] + output[i] for i in batch)
        while waiting and len(batch) < 6 and held + prompt[waiting[0]] + output[waiting[0]] <= 160:
            held += prompt[waiting[0]] + output[waiting[0]]
            batch[waiting.pop(0)] = 0
        context = sum(prompt[i] + done for i, done in batch.items())
        now += cost.step_s(2.0 * len({kind[i] for i in batch}), len(batch), context)
        for i in list(batch):
            batch[i] += 1
            if batch[i] == 1:
                first[i] = now
            if batch[i] == output[i]:
                finish[i] = now
                del batch[i]
    assert records.first_token_s == pytest.approx(first)
    assert records.finish_s == pytest.approx(finish)
