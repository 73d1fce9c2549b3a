"""What is wrong with a setting, in the words of an operator."""

import difflib
import re
from typing import Any, get_type_hints

from eldr.settings_units import FORMS

LONGEST_SHOWN = 80


def explain(message: str, raw: Any, settings: type) -> str:
    """One line that names key, value, and what was meant or expected.

    message: of msgspec, which names the place. raw: what it could not make into `settings`.
    """
    text, _, place = message.partition(" - at `$")
    keys = re.findall(r"[A-Za-z_]\w*|\[\d+\]", place)
    unknown = re.search(r"unknown field `(.+)`", text, re.S)
    if unknown:
        keys.append(unknown[1])
    value = _shown(repr(_value_at(raw, keys)))
    key = _shown(".".join(keys).replace(".[", "[")) or "configuration"
    if unknown:
        close = difflib.get_close_matches(unknown[1], _settings_at(keys[:-1], settings), n=1)
        return f"unknown setting {key} = {value}" + (f"; did you mean {close[0]}?" if close else "")
    return f"{key}: {value}: {_expected(text, keys, settings)}"


def _shown(text: str) -> str:
    """A text that fits into the line."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _expected(text: str, keys: list[str], settings: type) -> str:
    """msgspec's words for what was expected, in those of an operator where these are plainer."""
    for pattern, words in FORMS.items():
        text = text.replace(f"`str` matching regex {pattern!r}", words)
    parts = ", ".join(_settings_at(keys, settings))
    text = text.replace("`object`", f"a mapping with {parts}" if parts else "a mapping")
    for ending, unit in {"_s": "seconds", "_bytes": "bytes"}.items():
        if keys and keys[-1].endswith(ending):
            text = re.sub("`(?:int|float)`", f"a number of {unit}", text)
    return text[:1].lower() + text[1:]


def _settings_at(keys: list[str], settings: type) -> tuple[str, ...]:
    """The settings of a group, () for what is no group."""
    group: Any = settings
    for key in keys:
        group = get_type_hints(group).get(key) if hasattr(group, "__struct_fields__") else None
    return getattr(group, "__struct_fields__", ())


def _value_at(raw: Any, keys: list[str]) -> Any:
    for key in keys:
        try:
            raw = raw[int(key[1:-1])] if re.fullmatch(r"\[\d+\]", key) else raw[key]
        except (KeyError, IndexError, TypeError):
            return None
    return raw
