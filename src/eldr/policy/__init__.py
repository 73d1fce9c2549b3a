"""Routing policies, one a file. A file of this package that registers a policy is all it takes to add one."""

import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np

from eldr.errors import ConfigError
from eldr.policy.base import POLICIES, Policy, needs_profile

__all__ = ["POLICIES", "Policy", "create_policy", "needs_profile"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def create_policy(name: str, /, *, rng: np.random.Generator, **options: Any) -> Policy:
    """Return the policy `name` with its parameters set.

    Raises ConfigError for a name, parameter or value that does not exist, and for a required one left out.
    """
    build = POLICIES[name]
    parameters = inspect.signature(build).parameters.values()
    known = {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for key, value in options.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(f"policy {name!r} has no option {key!r} (given {value!r}); it has {has}")
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise ConfigError(f"policy {name!r} needs the option {key!r}; set it in the configuration file")
    return build(rng, **options)
