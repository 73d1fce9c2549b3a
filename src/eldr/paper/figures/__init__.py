"""The figures, one file each or one for a close group, in the paper's order."""

import importlib
import pkgutil

from eldr.paper.figure import FIGURES

__all__ = ["FIGURES"]

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
