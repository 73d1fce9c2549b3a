"""Expert counts to signatures: x = f(counts) * weights over the kept layers, s = x / ||x||."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError, PayloadError
from eldr.registry import Registry
from eldr.types import Matrix, Vector

FeatureArray = npt.NDArray[Any]
"""Expert counts (or summed gate probabilities), [L, E] of one request or [N, L, E] of many."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """A rule that turns counts into features: x = scale(counts) * weigh(calibration counts).

    scale: f, element by element on float32 counts, in place or not.
    weigh: the weights float32 [L, E] that calibration counts [N, L, E] give.
    """

    scale: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
    weigh: Callable[[FeatureArray], npt.NDArray[np.float32]]


TRANSFORMATIONS: Registry[Transformation] = Registry("transformation")
"""Of the discrete counts, which engines report: three of the paper's Fig. 7 ("log" and "binary" both flatten
large counts). Those of gate probabilities are in `eldr.signature.gates`."""


def idf_weights(counts: FeatureArray) -> npt.NDArray[np.float32]:
    """Return log((N + 1) / (df + 1)) [L, E] of counts [N, L, E]: df of N requests use the expert at all.

    An expert that every request uses weighs 0, one that none uses log(N + 1), which then multiplies zeros.
    """
    return log_idf(np.count_nonzero(counts, axis=0), len(counts))


def log_idf(df: npt.NDArray[np.integer], requests: int) -> npt.NDArray[np.float32]:
    """Return log((N + 1) / (df + 1)) for document frequencies in N requests."""
    weights: npt.NDArray[np.float64] = np.log((requests + 1) / (df + 1))
    return weights.astype(np.float32)


def unit_weights(counts: FeatureArray) -> npt.NDArray[np.float32]:
    """Return ones: every expert tells as much."""
    return np.ones(counts.shape[1:], np.float32)


def unscaled(counts: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the counts as they are."""
    return counts


def presence(counts: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return 1 where an expert is used at all, else 0."""
    return (counts > 0).astype(np.float32)


TRANSFORMATIONS.register("idf")(Transformation(unscaled, idf_weights))
TRANSFORMATIONS.register("counts")(Transformation(unscaled, unit_weights))
TRANSFORMATIONS.register("log")(Transformation(np.log1p, unit_weights))
TRANSFORMATIONS.register("binary")(Transformation(presence, unit_weights))


class SignatureTransform:
    """Turns expert counts into unit signatures of length D = kept layers x E.

    transformation: "idf", "counts", "log" (log(1 + counts)) or "binary". layers: which to keep, in order;
    None for all. Learned by `fit`: weights_ float32 [L, E] and kept_layers_ int64 [M].
    """

    transformations: ClassVar[Registry[Transformation]] = TRANSFORMATIONS

    weights_: npt.NDArray[np.float32]
    kept_layers_: npt.NDArray[np.int64]

    def __init__(self, transformation: str = "idf", layers: Sequence[int] | None = None) -> None:
        self.transformation = transformation
        self.layers = layers

    def fit(self, counts: FeatureArray) -> Self:
        """Learn the weights from prefill counts [N, L, E], N >= 1.

        Raises ConfigError for an unknown transformation or a layer that the model does not have.
        """
        if counts.ndim != 3 or not len(counts):
            raise ConfigError(f"signatures need counts [requests, layers, experts], got {counts.shape}")
        kept = range(counts.shape[1]) if self.layers is None else self.layers
        weights = self.transformations[self.transformation].weigh(counts)
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
        self._scale = self.transformations[self.transformation].scale
        self._keeps_all = np.array_equal(kept, np.arange(layers))
        self._kept_weights = np.ascontiguousarray(weights[kept])
        return self

    @property
    def length(self) -> int:
        """D, the number of components of a signature."""
        return self._kept_weights.size

    def transform(self, counts: FeatureArray) -> Vector | None:
        """Return the signature [D] of one request's counts [L, E], or None when nothing in them tells.

        Raises PayloadError when the counts have another shape than the fitted ones.
        """
        features = self.features(counts).reshape(-1)
        length = math.sqrt(float(features @ features))
        if length == 0:
            return None
        features /= np.float32(length)
        return features

    def transform_many(self, counts: FeatureArray) -> Matrix:
        """Return signatures [N, D] of counts [N, L, E]; a row that tells nothing stays zero."""
        features = self.features(counts).reshape(len(counts), -1)
        length = np.sqrt(np.einsum("nd,nd->n", features, features))[:, None]
        np.divide(features, length, out=features, where=length > 0)
        return features

    def features(self, counts: FeatureArray) -> npt.NDArray[np.float32]:
        """Return f(counts) * weights of the kept layers, [M, E] or [N, M, E], not yet of unit length."""
        if counts.shape[-2:] != self.weights_.shape:
            raise PayloadError(
                f"expert counts are {list(counts.shape[-2:])} (layers, experts), the profile's "
                f"{list(self.weights_.shape)}; fit a profile for the running model"
            )
        kept = counts if self._keeps_all else counts[..., self.kept_layers_, :]
        return self._scale(kept.astype(np.float32)) * self._kept_weights
