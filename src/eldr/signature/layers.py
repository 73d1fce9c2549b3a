"""Greedy layer selection: the layers whose signatures foretell decode best (the paper's Fig. 8)."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.signature.quality import Real, decode_overlap, standard_ranks, usable_requests
from eldr.signature.transform import FeatureArray

PAIRS = 50_000
"""Pairs of requests that each choice is made on. Candidates are compared on the same pairs, so what the
sample adds to the difference of two candidates is far less than to either's rho (ADR 11)."""


@dataclass(frozen=True, slots=True)
class LayerCurve:
    """Layers in the order in which they were chosen, and the rho that the signatures have after each.

    rho of the sampled pairs; it rises, and falls again once layers come that tell other things than decode.
    """

    order: tuple[int, ...]
    rho: tuple[float, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The N* layers at the top of the curve, ascending; of equal tops the one with fewer layers."""
        return tuple(sorted(self.order[: int(np.argmax(self.rho)) + 1]))


def select_layers(
    features: npt.NDArray[np.float32], decode_counts: FeatureArray, *, pairs: int = PAIRS, seed: int = 0
) -> LayerCurve | None:
    """Add layer after layer, each time the one that gives the highest rho with those before it.

    l_t = argmax over l not in S of rho(S + l); S <- S + l_t; kept = the first N* = argmax over t of rho_t.

    features: weighted and not yet of unit length, [N, L, E], see `SignatureTransform.features`.
    decode_counts: [N, L, E]. pairs: sampled by `seed` where the requests make more. A request without
    features in the layers so far is like no other. None where rho is not defined (see `rho`); of equally
    good layers the first is taken.
    """
    rows = usable_requests(features.reshape(len(features), -1), decode_counts, seed)
    if len(rows) < 3:
        return None
    first, second = _sample_pairs(len(rows), pairs, seed)
    target = standard_ranks(decode_overlap(decode_counts[rows])[first, second])
    if target is None:
        return None
    search = _Search.start(features[rows], first, second, target)
    while search.left:
        search.add_best()
    return None if np.isneginf(search.curve).all() else LayerCurve(tuple(search.order), tuple(search.curve))


def _sample_pairs(n: int, at_most: int, seed: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    first, second = np.triu_indices(n, 1)
    if len(first) > at_most:
        drawn = np.sort(np.random.default_rng(seed).choice(len(first), at_most, replace=False))
        first, second = first[drawn], second[drawn]
    return first, second


@dataclass(slots=True)
class _Search:
    """Sums over the layers chosen so far, so that a candidate costs one addition a pair.

    dots [L, P], squares [L, N]: x_i . x_j of each pair and |x_i|^2 of each request, layer by layer.
    """

    dots: npt.NDArray[np.float32]
    squares: npt.NDArray[np.float32]
    first: npt.NDArray[np.intp]
    second: npt.NDArray[np.intp]
    target: Real
    dot: npt.NDArray[np.float32]
    square: npt.NDArray[np.float32]
    left: list[int]
    order: list[int]
    curve: list[float]

    @classmethod
    def start(
        cls,
        features: npt.NDArray[np.float32],
        first: npt.NDArray[np.intp],
        second: npt.NDArray[np.intp],
        target: Real,
    ) -> Self:
        layers = features.shape[1]
        dots = np.stack([(x @ x.T)[first, second] for x in np.moveaxis(features, 1, 0)])
        squares = np.einsum("nle,nle->ln", features, features)
        nothing = np.zeros_like(dots[0]), np.zeros_like(squares[0])
        return cls(dots, squares, first, second, target, *nothing, list(range(layers)), [], [])

    def add_best(self) -> None:
        values = [self._rho_with(layer) for layer in self.left]
        best = self.left.pop(int(np.argmax(values)))
        self.dot = self.dot + self.dots[best]
        self.square = self.square + self.squares[best]
        self.order.append(best)
        self.curve.append(max(values))

    def _rho_with(self, layer: int) -> float:
        length = np.sqrt(self.square + self.squares[layer])
        scale = length[self.first] * length[self.second]
        cosine = np.divide(self.dot + self.dots[layer], scale, out=np.zeros_like(scale), where=scale > 0)
        ranks = standard_ranks(cosine)
        return -np.inf if ranks is None else float(ranks @ self.target)
