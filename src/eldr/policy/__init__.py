"""Routing policies, one a file. A file of this package that registers a policy is all it takes to add one."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from eldr.errors import ConfigError
from eldr.policy.base import POLICIES, Policy, keeps_signatures, needs_profile

__all__ = ["POLICIES", "Policy", "create_policy", "keeps_signatures", "needs_profile", "options_by_profile"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def create_policy(name: str, /, *, rng: np.random.Generator, **options: Any) -> Policy:
    """Return the policy `name` with its parameters set.

    Raises ConfigError for a name, parameter or value that does not exist, and for a required one left out.
    """
    build, known = POLICIES[name], _options(name)
    for key, value in options.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(f"policy {name!r} has no option {key!r} (given {value!r}); it has {has}")
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise ConfigError(f"policy {name!r} needs the option {key!r}; set it in the configuration file")
    return build(rng, **options)


def options_by_profile(name: str, options: Mapping[str, Any], tau: float) -> dict[str, Any]:
    """The options of a policy, with a profile's tau if it has such an option and none is given."""
    return {"tau": tau, **options} if "tau" in _options(name) else dict(options)


def _options(name: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(POLICIES[name]).parameters.values()
    return {one.name: one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
