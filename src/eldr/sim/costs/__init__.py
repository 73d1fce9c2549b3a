"""The cost files that come with ELDR, made by `python -m eldr.bench.sim_costs`."""

from functools import cache
from importlib.resources import files

import msgspec

from eldr.errors import ConfigError
from eldr.sim.cost import StepCost


def cost_names() -> tuple[str, ...]:
    """The names of all cost files, in order."""
    found = (entry.name for entry in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


@cache
def named_cost(name: str) -> StepCost:
    """The cost of one GPU and model. Raises ConfigError, naming those that exist."""
    if name not in cost_names():
        raise ConfigError(f"unknown cost {name!r}; choose from {', '.join(cost_names())}")
    text = files(__package__).joinpath(f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=StepCost)
