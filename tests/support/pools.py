"""Views of made-up decode pools."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eldr.types import PoolView


def unit_rows(rows: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Scale rows to unit length; zero rows stay zero."""
    matrix = np.asarray(rows, np.float32)
    length = np.linalg.norm(matrix, axis=-1, keepdims=True)
    return np.divide(matrix, length, out=np.zeros_like(matrix), where=length > 0)


def pool_view(
    in_flight: Sequence[int],
    *,
    available: Sequence[bool] | None = None,
    centroids: npt.NDArray[np.float32] | None = None,
) -> PoolView:
    """A view of workers w0, w1, ...; a zero row of `centroids` is a worker without one."""
    k = len(in_flight)
    return PoolView(
        worker_ids=tuple(f"w{i}" for i in range(k)),
        in_flight=np.array(in_flight, np.int64),
        in_flight_tokens=np.array(in_flight, np.float64) * 100,
        available=np.ones(k, bool) if available is None else np.array(available, bool),
        centroids=centroids,
        has_centroid=np.zeros(k, bool) if centroids is None else centroids.any(axis=1),
    )


def random_view(rng: np.random.Generator, workers: int, dim: int = 12) -> PoolView:
    """A view with random loads, some workers down, some without a centroid, at least one available."""
    centroids = unit_rows(rng.random((workers, dim)) * (rng.random((workers, 1)) < 0.8))
    available = rng.random(workers) < 0.7
    available[rng.integers(workers)] = True
    return pool_view(rng.integers(0, 6, workers).tolist(), available=available.tolist(), centroids=centroids)
