"""Choosing a policy and its parameters by name."""

from typing import Any

import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.policy import POLICIES, create_policy, needs_profile


def test_the_six_policies_are_there() -> None:
    expected = {"round_robin", "random", "jsq", "p2c", "domain_label", "locality_band"}
    assert expected <= set(POLICIES.names())


def test_policies_say_whether_they_need_a_profile() -> None:
    assert {name for name in POLICIES.names() if needs_profile(name)} == {"locality_band", "soft_locality"}
    with pytest.raises(ConfigError, match="unknown policy 'fastest'"):
        needs_profile("fastest")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fastest", {}, "unknown policy 'fastest'; choose from domain_label, jsq"),
        ("jsq", {"tau": 0.1}, r"policy 'jsq' has no option 'tau' \(given 0.1\); it has none"),
        ("locality_band", {"tua": 3}, r"no option 'tua' \(given 3\); it has tau"),
        ("locality_band", {"tau": -0.1}, "'tau' is -0.1, expected a number from 0 to 2"),
        ("locality_band", {"tau": 2.1}, "'tau' is 2.1"),
        ("locality_band", {"tau": float("nan")}, "'tau' is nan"),
        ("locality_band", {"tau": "0.1"}, "'tau' is '0.1'"),
        ("locality_band", {"tau": True}, "'tau' is True"),
        ("domain_label", {}, "policy 'domain_label' needs the option 'workers'"),
        ("domain_label", {"workers": {}}, "'workers' is {}"),
        ("domain_label", {"workers": ["a"]}, r"'workers' is \['a'\]"),
        ("domain_label", {"workers": {"law": "w0"}}, "workers of 'law' are 'w0'"),
        ("domain_label", {"workers": {"law": []}}, r"workers of 'law' are \[\]"),
        ("domain_label", {"workers": {"law": [1]}}, r"workers of 'law' are \[1\]"),
        ("domain_label", {"workers": {False: ["w0"]}}, "the label False is no text; put it in quotes"),
    ],
)
def test_bad_names_and_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_policy(name, rng=np.random.default_rng(0), **options)
