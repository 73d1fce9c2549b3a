"""New centroids from live signatures: when, whose, and how many requests move."""

import numpy as np
import pytest

from eldr.adapt.refit import refit
from eldr.types import Matrix

D = 24
NOBODY = np.zeros((0, D), np.float32)


def unit(rows: np.ndarray) -> Matrix:
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def groups(*directions: int, rows: int = 100, noise: float = 0.3, seed: int = 0) -> Matrix:
    """Signatures around some axes, shuffled."""
    rng = np.random.default_rng(seed)
    made = np.concatenate([np.eye(D)[[axis] * rows] for axis in directions])
    return unit(rng.permutation(np.abs(made + noise * rng.normal(size=made.shape) / np.sqrt(D))))


def axes(*directions: int) -> Matrix:
    return np.eye(D, dtype=np.float32)[list(directions)]


def all_seated(workers: int) -> np.ndarray:
    return np.ones(workers, bool)


def test_centroids_that_are_right_stay() -> None:
    signatures = groups(0, 1, 2)
    right = unit(np.stack([groups(axis).mean(axis=0) for axis in (0, 1, 2)]))
    found = refit(signatures, right, all_seated(3), NOBODY)
    assert not found.worth_it
    assert found.gain is not None
    assert abs(found.gain) < 0.01


@pytest.mark.parametrize("seed", range(20))
def test_chance_alone_does_not_move_requests(seed: int) -> None:
    signatures = groups(0, 1, rows=60, seed=seed)
    today = refit(groups(0, 1, rows=60, seed=seed + 1000), axes(0, 1), all_seated(2), NOBODY).centroids
    assert not refit(signatures, today, all_seated(2), NOBODY).worth_it


def test_a_group_that_took_the_place_of_another_is_found_and_the_others_stay() -> None:
    found = refit(groups(0, 1, 7), axes(0, 1, 2), all_seated(3), NOBODY)
    assert found.worth_it
    assert (found.centroids @ axes(0, 1, 7).T).argmax(axis=1).tolist() == [0, 1, 2]
    assert found.moved < 0.05 + 1 / 3


def test_a_change_of_everything_is_found_though_no_centroid_is_near_anything() -> None:
    found = refit(groups(5, 6, noise=0.0), axes(0, 1), all_seated(2), NOBODY)
    assert found.worth_it
    assert sorted((found.centroids @ axes(5, 6).T).argmax(axis=1)) == [0, 1]


def test_which_worker_gets_which_is_chosen_so_that_requests_stay() -> None:
    shuffled = axes(2, 0, 1) + 0.4 * axes(5, 6, 7)
    found = refit(groups(0, 1, 2), unit(shuffled), all_seated(3), NOBODY)
    assert found.worth_it
    assert (found.centroids @ axes(2, 0, 1).T).argmax(axis=1).tolist() == [0, 1, 2]
    assert found.moved < 0.05


def test_one_that_joins_takes_part_of_the_hottest_cluster() -> None:
    signatures = np.concatenate([groups(0, rows=60), groups(1, 2, rows=90)])
    both = unit(axes(1) + axes(2))
    today = np.concatenate([axes(0), both, np.zeros((1, D), np.float32)])
    found = refit(signatures, today, np.array([True, True, False]), NOBODY)
    assert found.worth_it
    assert found.gain is None
    owners = (found.centroids @ axes(0, 1, 2).T).argmax(axis=1)
    assert owners[0] == 0
    assert sorted(owners[1:]) == [1, 2]
    assert found.moved == pytest.approx(90 / 240, abs=0.05)


def test_one_that_joins_takes_over_from_one_that_left() -> None:
    today = np.concatenate([axes(0), np.zeros((1, D), np.float32)])
    found = refit(groups(0, 4), today, np.array([True, False]), axes(4))
    assert (found.centroids @ axes(0, 4).T).argmax(axis=1).tolist() == [0, 1]


def test_the_requests_of_one_that_left_are_shared_out() -> None:
    found = refit(groups(0, 1, 4, rows=60), axes(0, 1), all_seated(2), axes(4))
    assert found.worth_it
    assert found.sizes.sum() == 180
    nearest = (groups(4) @ found.centroids.T).argmax(axis=1)
    similarity = (groups(4) @ found.centroids.T)[np.arange(100), nearest]
    assert similarity.mean() > 0.3


def test_without_any_centroid_clusters_are_made_from_nothing() -> None:
    found = refit(groups(3, 5, 9), np.zeros((3, D), np.float32), np.zeros(3, bool), NOBODY)
    assert found.worth_it
    assert sorted((found.centroids @ axes(3, 5, 9).T).argmax(axis=1)) == [0, 1, 2]
    assert found.moved == 1
    assert np.allclose(np.linalg.norm(found.centroids, axis=1), 1, atol=1e-4)


def test_signatures_that_are_all_equal_are_no_fault() -> None:
    same = groups(0, rows=1).repeat(64, axis=0)
    found = refit(same, np.zeros((2, D), np.float32), np.zeros(2, bool), NOBODY)
    assert np.isfinite(found.centroids).all()
    joined = refit(same, np.concatenate([axes(0), axes(1) * 0]), np.array([True, False]), NOBODY)
    assert np.isfinite(joined.centroids).all()
    assert np.allclose(np.linalg.norm(joined.centroids, axis=1), 1, atol=1e-4)
