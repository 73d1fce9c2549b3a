"""Pieces of work whose results are kept: a run that was interrupted, or comes again, computes only what is
new.

A result is known by the function, its settings and the code and data of the package that the function can
reach, so that it is never that of another version. Data from elsewhere is taken not to change.
"""

import ast
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import eldr
from eldr.files import replacing

PACKAGE = Path(eldr.__file__).parent


@dataclass(frozen=True, slots=True)
class Piece:
    """A call of a module's function with keyword settings; it returns what JSON can hold.

    group: pieces of one group run one after another in one process, so that they share what it has cached.
    """

    function: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    group: str = ""

    @property
    def key(self) -> str:
        """Function, settings and code, in one word."""
        name = f"{self.function.__module__}:{self.function.__qualname__}"
        whole = msgspec.json.encode(
            [name, self.settings, code_version(self.function.__module__)], order="sorted"
        )
        return f"{self.function.__module__.rpartition('.')[2]}-{hashlib.sha256(whole).hexdigest()[:20]}"

    def path(self, folder: Path) -> Path:
        """Where its result is kept."""
        return folder / f"{self.key}.json"

    def run(self, path: Path) -> None:
        """Compute it and keep it in a file, whose name the process that planned it chose."""
        result = self.function(**self.settings)
        with replacing(path) as file:
            file.write(msgspec.json.encode(result))

    def load(self, folder: Path) -> Any:
        """What it returned."""
        return msgspec.json.decode(self.path(folder).read_bytes())


@functools.cache
def code_version(module: str) -> str:
    """A hash of the sources of a module and of all of eldr that it imports, directly or not."""
    digest = hashlib.sha256()
    for path in sorted(_reachable(module)):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _reachable(module: str) -> set[Path]:
    found: set[Path] = set()
    waiting = list(_files(module))
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [file for name in _imports(path) for file in _files(name)]
    return found


def _files(module: str) -> Iterator[Path]:
    """The file of a module. Of a package its own, its data, and all modules where it imports them by name."""
    if module == "eldr":
        return
    base = PACKAGE.joinpath(*module.split(".")[1:])
    if (own := base / "__init__.py").is_file():
        yield from (own, *base.glob("*.json"))
        yield from base.glob("*.py") if "pkgutil" in own.read_text() else ()
    elif (file := base.with_suffix(".py")).is_file():
        yield file


def _imports(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("eldr."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eldr"):
            assert node.module is not None
            yield from {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
