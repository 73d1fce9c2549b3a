"""Modules that take seconds to import, for tests that only some processes of a test run execute."""

import importlib
from typing import Any


class Later:
    """A module, imported when a public name of it is first asked for (pytest asks for private ones)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
