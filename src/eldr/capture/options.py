"""Settings of the engine side, read from `kv_connector_extra_config["eldr"]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from eldr.errors import ConfigError

TraceMode = Literal["off", "counts", "ids"]

_TRACE_MODES: dict[object, TraceMode] = {False: "off", True: "counts", "counts": "counts", "ids": "ids"}


def trace_mode(value: object) -> TraceMode:
    """The trace mode that a request or setting asks for: false, true (counts) or "ids".

    Raises:
        ConfigError: for any other value.
    """
    if isinstance(value, bool | str) and value in _TRACE_MODES:
        return _TRACE_MODES[value]
    raise ConfigError(f'eldr.trace = {value!r} is not one of false, true, "counts", "ids"')


@dataclass(frozen=True)
class CaptureOptions:
    """Engine-side settings.

    Attributes:
        inner: name of the KV connector that moves the KV cache, as vLLM's own registry knows it.
        trace: trace that every request gets, whatever it asks for itself ("off" leaves it to the request).
        step_log: path of a JSON-lines file with one line a step, or None.
        step_log_max_steps: lines after which the step log stops growing.
    """

    inner: str = "NixlConnector"
    trace: TraceMode = "off"
    step_log: str | None = None
    step_log_max_steps: int = 1_000_000

    @classmethod
    def from_extra_config(cls, extra: Mapping[str, object]) -> CaptureOptions:
        """Reads the key "eldr" of a connector's extra configuration; absent means defaults.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type.
        """
        given = extra.get("eldr", {})
        if not isinstance(given, Mapping):
            raise ConfigError(f'kv_connector_extra_config["eldr"] = {given!r} must be an object')
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ConfigError(
                f'kv_connector_extra_config["eldr"] has unknown key {unknown[0]!r}; '
                f"known: {', '.join(sorted(known))}"
            )
        options = cls(**{**given, "trace": trace_mode(given.get("trace", False))})
        options._check_types()
        return options

    def _check_types(self) -> None:
        if not isinstance(self.inner, str) or not self.inner or self.inner == "EldrConnector":
            raise ConfigError(f"eldr.inner = {self.inner!r} must name another KV connector")
        if self.step_log is not None and not isinstance(self.step_log, str):
            raise ConfigError(f"eldr.step_log = {self.step_log!r} must be a path")
        if type(self.step_log_max_steps) is not int or self.step_log_max_steps < 1:
            raise ConfigError(
                f"eldr.step_log_max_steps = {self.step_log_max_steps!r} must be a positive integer"
            )
