"""Which decode workers there are to learn for, and their centroids."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.types import Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """The decode workers of now and their centroids float32 [K, D], None without a profile.

    has_centroid: bool [K], False for those that joined. left: [n, D], of workers that are gone.
    """

    worker_ids: tuple[str, ...]
    centroids: Matrix | None
    has_centroid: npt.NDArray[np.bool_]
    left: Matrix | None
