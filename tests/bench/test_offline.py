import numpy as np
import pytest

from eldr.bench.offline import against_mixed, mixed_by_batch, offline_gain
from eldr.bench.steplog import Step
from eldr.errors import CalibrationError
from eldr.profile.active import activation_rates, expected_active

LAYERS, EXPERTS, TOP_K = 2, 12, 3


def traces(groups: int, each: int, tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Expert ids [N, tokens, LAYERS, TOP_K]; a group prefers experts of its own."""
    ids = []
    for group in range(groups):
        weight = np.where(np.arange(EXPERTS) % groups == group, 1.0, -1.0)
        scores = weight + rng.gumbel(size=(each, tokens, LAYERS, EXPERTS))
        ids.append(np.argsort(-scores, axis=3)[..., :TOP_K])
    return np.concatenate(ids)


def counts_of(ids: np.ndarray) -> np.ndarray:
    counts = np.zeros((len(ids), LAYERS, EXPERTS), dtype=np.uint32)
    for request, token, layer, k in np.ndindex(ids.shape):
        counts[request, layer, ids[request, token, layer, k]] += 1
    return counts


def test_the_formula_agrees_with_counting_experts_step_by_step() -> None:
    rng = np.random.default_rng(0)
    ids = traces(2, 3, 400, rng)
    use = activation_rates(counts_of(ids), TOP_K)
    assert use.sum(axis=2) == pytest.approx(TOP_K)
    counted = np.mean(
        [
            len({expert for request in ids for expert in request[rng.integers(400), layer]})
            for layer in range(LAYERS)
            for _ in range(1500)
        ]
    )
    assert expected_active(use) == pytest.approx(counted, rel=0.01)


def test_grouping_by_the_true_groups_helps_and_grouping_at_random_does_not() -> None:
    rng = np.random.default_rng(1)
    use = activation_rates(counts_of(traces(3, 40, 30, rng)), TOP_K)
    groups = np.repeat(np.arange(3), 40)
    helped = offline_gain(use, groups, 8)
    assert (helped.batch, helped.clusters, helped.requests) == (8, 3, 120)
    assert helped.gain < -0.1
    assert helped.gain == pytest.approx(helped.grouped / helped.mixed - 1)
    shuffled = offline_gain(use, rng.permutation(groups), 8)
    assert abs(shuffled.gain) < 0.01


def test_clusters_of_a_few_requests_say_nothing() -> None:
    use = activation_rates(counts_of(traces(2, 10, 20, np.random.default_rng(2))), TOP_K)
    assert offline_gain(use, np.array([0] * 18 + [1] * 2), 8).clusters == 2
    with pytest.raises(CalibrationError, match="no cluster has 8 of the 20 requests"):
        offline_gain(use, np.arange(20) % 4, 8)


def test_against_mixed_is_zero_for_random_batches_of_any_sizes() -> None:
    rng = np.random.default_rng(3)
    ids = traces(3, 30, 40, rng)
    mixed = mixed_by_batch(activation_rates(counts_of(ids), TOP_K), 9)
    assert mixed[0] == 0
    assert mixed[1] == pytest.approx(TOP_K, abs=0.01)
    assert (np.diff(mixed) > 0).all()

    def step(batch: int, members: np.ndarray) -> Step:
        token = rng.integers(40)
        chosen = rng.choice(members, batch, replace=False)
        active = [len(set(ids[chosen, token, layer].ravel())) for layer in range(LAYERS)]
        return Step(0.0, "d0", batch, float(np.mean(active)))

    everyone, group = np.arange(90), np.arange(30)
    sizes = rng.integers(1, 10, 1500)
    assert against_mixed([step(batch, everyone) for batch in sizes], mixed) == pytest.approx(0, abs=0.015)
    assert against_mixed([step(batch, group) for batch in sizes], mixed) < -0.1
