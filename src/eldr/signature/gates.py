"""Signatures of gate probabilities: the other three transformations of the paper's Fig. 7.

A router gives each token a probability for every expert, not only a choice of top-k. Counts are what an
engine with ELDR's connector reports; probabilities come from elsewhere, for example `router_logits` of a
Hugging Face model, and serve to measure what the choice of counts gives away.
"""

import numpy as np
import numpy.typing as npt

from eldr.registry import Registry
from eldr.signature.transform import (
    FeatureArray,
    SignatureTransform,
    Transformation,
    log_idf,
    unit_weights,
    unscaled,
)

GATE_TRANSFORMATIONS: Registry[Transformation] = Registry("gate transformation")


def gate_sums(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return g = sum over tokens of softmax(logits), float32 [L, E], of router logits [tokens, L, E].

    Each layer sums to the number of tokens, so that g compares with counts of top-1 choices.
    """
    odds = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf), dtype=np.float64)
    sums: npt.NDArray[np.float64] = (odds / odds.sum(axis=2, keepdims=True)).sum(axis=0)
    return sums.astype(np.float32)


def gate_idf_weights(gates: FeatureArray) -> npt.NDArray[np.float32]:
    """Return log((N + 1) / (df + 1)) [L, E] of gate sums [N, L, E].

    Every expert has some probability in every request, so df counts the requests that give it more than an
    even share: g(l, e) > sum over experts of g(l, .) / E.
    """
    used = gates * np.float32(gates.shape[2]) > gates.sum(axis=2, keepdims=True)
    return log_idf(np.count_nonzero(used, axis=0), len(gates))


class GateTransform(SignatureTransform):
    """`SignatureTransform` for gate sums: "gates_idf", "gates" or "gates_log"."""

    transformations = GATE_TRANSFORMATIONS


GATE_TRANSFORMATIONS.register("gates_idf")(Transformation(unscaled, gate_idf_weights))
GATE_TRANSFORMATIONS.register("gates")(Transformation(unscaled, unit_weights))
GATE_TRANSFORMATIONS.register("gates_log")(Transformation(np.log1p, unit_weights))
