"""Prompt files: JSON lines {"prompt": str, "domain" or "label": str}, one file or a folder of them."""

import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from eldr.errors import CalibrationError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its domain ("" where the file names none); `origin` is "file:line", for messages."""

    text: str
    label: str
    origin: str


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The usable prompts in file order, and one line of explanation for each line that is not."""

    prompts: list[Prompt]
    skipped: list[str]


def read_prompts(path: Path) -> PromptSet:
    """Read a JSON-lines file, or every *.jsonl below a folder in name order.

    A damaged line is skipped and named. CalibrationError for a file that cannot be read, and where there is
    not one usable line.
    """
    found = PromptSet([], [])
    for file in _files(path):
        _read_file(file, found)
    if not found.prompts:
        detail = f": {found.skipped[0]}" if found.skipped else ""
        raise CalibrationError(
            f'{path} holds no prompt; give JSON lines such as {{"prompt": "...", "domain": "..."}}{detail}'
        )
    return found


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.rglob("*.jsonl"))
    if not path.is_file():
        raise CalibrationError(f"no prompt file at {path}")
    return [path]


def _read_file(file: Path, found: PromptSet) -> None:
    try:
        content = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise CalibrationError(f"cannot read {file}: {error.strerror}") from error
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        origin = f"{file.name}:{number}"
        try:
            found.prompts.append(_parse(line, origin))
        except (msgspec.DecodeError, ValueError) as error:
            found.skipped.append(f"{origin}: {error}")


def _parse(line: bytes, origin: str) -> Prompt:
    row: Any = msgspec.json.decode(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    text = row.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise ValueError('"prompt" is missing or empty')
    label = row.get("domain", row.get("label")) or ""
    return Prompt(text, str(label), origin)
