"""A policy with its options, as a value; and those that a study tries."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from eldr.policy import Policy, create_policy

Option = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy by its name. options: (key, value) pairs in order of key; a value can be hashed."""

    name: str
    options: tuple[Option, ...] = ()

    @classmethod
    def of(cls, name: str, /, **options: Any) -> Self:
        """The policy `name` with options by keyword."""
        return cls(name, tuple(sorted(options.items())))

    def create(self, seed: int) -> Policy:
        """A fresh policy. Raises ConfigError for a name or an option that does not exist."""
        return create_policy(self.name, rng=np.random.default_rng(seed), **dict(self.options))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.options)})"


JSQ = Choice("jsq")
DEFAULT = Choice("soft_locality")

CANDIDATES: tuple[Choice, ...] = (
    DEFAULT,
    JSQ,
    *(Choice.of("locality_band", tau=tau) for tau in (0.05, 0.1, 0.2, 0.4)),
)
"""What a study tries beside the current choice, which may be any other."""
