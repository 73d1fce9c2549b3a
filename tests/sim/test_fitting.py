import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.sim.fitting import fit_linear, fit_moe


def test_exact_data_gives_its_coefficients_and_no_error() -> None:
    active, tokens = (grid.ravel().astype(float) for grid in np.meshgrid([8, 16, 32, 64], [1, 2, 4, 8]))
    fit = fit_moe(active, tokens, 20.0 + 2.0 * active + 0.5 * tokens)
    assert fit.coefficients == pytest.approx([20.0, 2.0, 0.5])
    assert (fit.r2, fit.cv_error) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert fit.points == 16


def test_no_coefficient_is_negative_and_columns_may_differ_in_size() -> None:
    x = np.stack([np.ones(20), np.arange(20.0), 1e9 * np.arange(20.0) ** 2], axis=1)
    fit = fit_linear(x, 50.0 - np.arange(20.0) + 3.0 * np.arange(20.0) ** 2, np.arange(20))
    assert fit.coefficients.min() >= 0
    assert fit.coefficients[2] == pytest.approx(3e-9, rel=0.1)


def test_the_error_is_that_of_points_the_fit_has_not_seen() -> None:
    """A fit of a mean: leaving out the 30 predicts 10, leaving out a 10 predicts 20 or 10 by group."""
    y = np.array([10.0, 10.0, 30.0, 30.0])
    fit = fit_linear(np.ones((4, 1)), y, np.array([0, 0, 1, 1]))
    assert fit.coefficients[0] == pytest.approx(20.0)
    assert fit.cv_error == pytest.approx(np.mean([2.0, 2.0, 2 / 3, 2 / 3]))


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        fit_linear(np.ones((1, 1)), np.ones(1), np.zeros(1))
    with pytest.raises(ConfigError, match="too few"):
        fit_linear(np.ones((3, 1)), np.ones(3), np.zeros(3))
