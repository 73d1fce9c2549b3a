"""Expert ids to expert counts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.types import Counts


def count_experts(ids: npt.NDArray[np.integer[Any]], num_experts: int) -> Counts:
    """Return counts uint32 [L, E]: how often each expert occurs in ids [tokens, L, top_k], 0 to E - 1."""
    num_layers = ids.shape[1]
    flat = ids.astype(np.int64) + np.arange(num_layers)[None, :, None] * num_experts
    counts = np.bincount(flat.ravel(), minlength=num_layers * num_experts)
    return counts.reshape(num_layers, num_experts).astype(np.uint32)
