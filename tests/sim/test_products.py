"""Remembered products are the products."""

import numpy as np
import pytest

from eldr.errors import ProfileError
from eldr.pool import Worker, WorkerPool
from eldr.sim.products import Centroids, RememberedProducts


def pool(workers: int) -> WorkerPool:
    return WorkerPool(Worker(f"d{k}", f"sim://{k}") for k in range(workers))


def test_a_product_is_computed_once_and_is_that_of_a_plain_matrix() -> None:
    rng = np.random.default_rng(0)
    matrix, signatures = rng.random((6, 40), np.float32), rng.random((5, 40), np.float32)
    rows = list(signatures)
    decode = pool(6)
    products = RememberedProducts(decode, matrix)
    for _ in range(2):
        for row in rows:
            centroids = products.attach(decode.view()).centroids
            assert centroids is not None
            product = centroids @ row
            assert type(product) is np.ndarray
            assert (product == matrix @ row).all()
            assert centroids @ row is product


def test_parts_and_other_expressions_work_as_on_any_array() -> None:
    matrix = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    centroids, row = matrix.view(Centroids), np.ones(4, np.float32)
    centroids @ row  # remembered, and not taken for that of a part
    assert (centroids[[2, 0]] @ row).tolist() == [38.0, 6.0]
    assert (centroids[1:] @ row).tolist() == [22.0, 38.0]
    assert (row @ centroids.T).tolist() == [6.0, 22.0, 38.0]
    assert (2 * centroids @ row).tolist() == [12.0, 44.0, 76.0]
    assert (centroids @ matrix.T == matrix @ matrix.T).all()


def test_rows_go_to_workers_in_order() -> None:
    decode = pool(3)
    view = RememberedProducts(decode, np.eye(2, 4, dtype=np.float32)).attach(decode.view())
    assert view.has_centroid.tolist() == [True, True, False]
    fewer = pool(1)
    assert RememberedProducts(fewer, np.eye(2, 4, dtype=np.float32)).attach(fewer.view()).has_centroid.all()
    with pytest.raises(ProfileError):
        RememberedProducts(pool(2), np.ones(2, np.float32))
