"""Gate probabilities of the shipped model."""

import numpy as np

from eldr.embedded import model_path
from eldr.embedded.gates import GateReader


def test_probabilities_and_choices_are_of_the_same_tokens() -> None:
    gates, counts = GateReader(model_path()).read("def add(a, b):\n    return a + b\n")
    tokens = counts.sum(axis=1)[0] // 4
    assert (counts.sum(axis=1) == 4 * tokens).all()
    np.testing.assert_allclose(gates.sum(axis=1), tokens, rtol=1e-5)
    assert np.corrcoef(gates.ravel(), counts.ravel())[0, 1] > 0.8  # likely experts are chosen
