"""What is said of an engine that did not start."""

import pytest

from eldr.bench.engine import reason

CORE = "(EngineCore pid=7) ERROR 11-29 20:00:00 [core.py:900] "
SERVER = "(APIServer pid=5) "


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", "it printed nothing"),
        ("\n \n", "it printed nothing"),
        ("loading\nKilled\n\n", "Killed"),
        (
            f"{CORE}Traceback (most recent call last):\n"
            f"{CORE}eldr.errors.ConfigError: eldr.inner = 'X' must name another KV connector\n"
            f"{SERVER}    raise RuntimeError(message)\n"
            f"{SERVER}RuntimeError: Engine core initialization failed. See root cause above. Failed: {{}}\n",
            "eldr.errors.ConfigError: eldr.inner = 'X' must name another KV connector",
        ),
    ],
)
def test_the_reason_is_the_error_that_came_first(log: str, expected: str) -> None:
    assert reason(log) == expected
