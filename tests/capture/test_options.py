from __future__ import annotations

import pytest

from eldr.capture.options import CaptureOptions
from eldr.errors import ConfigError


def test_absent_means_defaults() -> None:
    assert CaptureOptions.from_extra_config({"other": 1}) == CaptureOptions()


def test_all_keys() -> None:
    given = {"inner": "MooncakeConnector", "trace": "ids", "step_log": "x.jsonl", "step_log_max_steps": 5}
    assert CaptureOptions.from_extra_config({"eldr": given}) == CaptureOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "mode"), [(False, "off"), (True, "counts"), ("ids", "ids")])
def test_trace_modes(value: object, mode: str) -> None:
    assert CaptureOptions.from_extra_config({"eldr": {"trace": value}}).trace == mode


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"innner": "NixlConnector"}, "'innner'"),
        ({"inner": ""}, "eldr.inner"),
        ({"inner": "EldrConnector"}, "EldrConnector"),
        ({"trace": 1}, "eldr.trace = 1"),
        ({"trace": "all"}, "'all'"),
        ({"step_log": 3}, "eldr.step_log"),
        ({"step_log_max_steps": 0}, "eldr.step_log_max_steps"),
        ({"step_log_max_steps": True}, "eldr.step_log_max_steps"),
        ("NixlConnector", "must be an object"),
    ],
)
def test_bad_settings_name_key_and_value(given: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CaptureOptions.from_extra_config({"eldr": given})
