"""Expert counts to signatures: x = f(counts) * weights over the kept layers, s = x / ||x||."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError, PayloadError
from eldr.registry import Registry
from eldr.types import Matrix, Vector

CountArray = npt.NDArray[Any]
"""Integer counts, [L, E] of one request or [N, L, E] of many."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """A rule that turns counts into features.

    scale: f, element by element on float32 counts, in place or not.
    weigh: the weights float32 [L, E] that calibration counts [N, L, E] give.
    """

    scale: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
    weigh: Callable[[CountArray], npt.NDArray[np.float32]]


TRANSFORMATIONS: Registry[Transformation] = Registry("transformation")


def idf_weights(counts: CountArray) -> npt.NDArray[np.float32]:
    """Return log((N + 1) / (df + 1)) per layer and expert, where df of N requests use the expert at all."""
    df = np.count_nonzero(counts, axis=0)
    weights: npt.NDArray[np.float64] = np.log((len(counts) + 1) / (df + 1))
    return weights.astype(np.float32)


def unit_weights(counts: CountArray) -> npt.NDArray[np.float32]:
    """Return ones: every expert tells as much."""
    return np.ones(counts.shape[1:], np.float32)


TRANSFORMATIONS.register("idf")(Transformation(scale=lambda counts: counts, weigh=idf_weights))
TRANSFORMATIONS.register("counts")(Transformation(scale=lambda counts: counts, weigh=unit_weights))
TRANSFORMATIONS.register("log")(Transformation(scale=np.log1p, weigh=unit_weights))


class SignatureTransform:
    """Turns expert counts into unit signatures of length D = kept layers x E.

    transformation: "idf", "counts" or "log" (log(1 + counts)). layers: which to keep, in order; None for all.
    Learned by `fit`: weights_ float32 [L, E] and kept_layers_ int64 [M].
    """

    weights_: npt.NDArray[np.float32]
    kept_layers_: npt.NDArray[np.int64]

    def __init__(self, transformation: str = "idf", layers: Sequence[int] | None = None) -> None:
        self.transformation = transformation
        self.layers = layers

    def fit(self, counts: CountArray) -> Self:
        """Learn the weights from prefill counts [N, L, E], N >= 1.

        Raises ConfigError for an unknown transformation or a layer that the model does not have.
        """
        if counts.ndim != 3 or not len(counts):
            raise ConfigError(f"signatures need counts [requests, layers, experts], got {counts.shape}")
        kept = range(counts.shape[1]) if self.layers is None else self.layers
        weights = TRANSFORMATIONS[self.transformation].weigh(counts)
        return self._learn(weights, np.asarray(kept, np.int64))

    @classmethod
    def fitted(
        cls, transformation: str, weights: npt.NDArray[np.float32], kept_layers: npt.NDArray[np.int64]
    ) -> Self:
        """Return a transform that was fitted before, from what it learned then."""
        return cls(transformation, kept_layers.tolist())._learn(weights, kept_layers)

    def _learn(self, weights: npt.NDArray[np.float32], kept: npt.NDArray[np.int64]) -> Self:
        layers = len(weights)
        if not len(kept) or len(np.unique(kept)) != len(kept) or kept.min() < 0 or kept.max() >= layers:
            raise ConfigError(
                f"kept layers are {kept.tolist()}, expected different ones from 0 to {layers - 1}"
            )
        self.weights_, self.kept_layers_ = weights, kept
        self._scale = TRANSFORMATIONS[self.transformation].scale
        self._keeps_all = np.array_equal(kept, np.arange(layers))
        self._kept_weights = np.ascontiguousarray(weights[kept])
        return self

    @property
    def length(self) -> int:
        """D, the number of components of a signature."""
        return self._kept_weights.size

    def transform(self, counts: CountArray) -> Vector | None:
        """Return the signature [D] of one request's counts [L, E], or None when nothing in them tells.

        Raises PayloadError when the counts have another shape than the fitted ones.
        """
        features = self._features(counts).reshape(-1)
        length = math.sqrt(float(features @ features))
        if length == 0:
            return None
        features /= np.float32(length)
        return features

    def transform_many(self, counts: CountArray) -> Matrix:
        """Return signatures [N, D] of counts [N, L, E]; a row that tells nothing stays zero."""
        features = self._features(counts).reshape(len(counts), -1)
        length = np.sqrt(np.einsum("nd,nd->n", features, features))[:, None]
        np.divide(features, length, out=features, where=length > 0)
        return features

    def _features(self, counts: CountArray) -> npt.NDArray[np.float32]:
        if counts.shape[-2:] != self.weights_.shape:
            raise PayloadError(
                f"expert counts are {list(counts.shape[-2:])} (layers, experts), the profile's "
                f"{list(self.weights_.shape)}; fit a profile for the running model"
            )
        kept = counts if self._keeps_all else counts[..., self.kept_layers_, :]
        return self._scale(kept.astype(np.float32)) * self._kept_weights
