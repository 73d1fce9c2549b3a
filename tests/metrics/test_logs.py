"""Log lines: one JSON object each, with the request they belong to."""

import json
import logging
import sys

from eldr.metrics.logs import JsonFormatter, request_id


def line(message: str, *args: object, error: bool = False) -> dict[str, object]:
    info = sys.exc_info() if error else None
    record = logging.LogRecord("eldr.x", logging.WARNING, __file__, 1, message, args, info)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_is_one_object_with_its_request() -> None:
    token = request_id.set("abc")
    made = line("worker %s is out", "d0")
    request_id.reset(token)
    assert (made["message"], made["level"], made["logger"]) == ("worker d0 is out", "warning", "eldr.x")
    assert made["request_id"] == "abc"
    assert str(made["time"]).endswith("+00:00")
    assert line("x")["request_id"] is None


def test_line_breaks_errors_and_bytes_that_are_no_text() -> None:
    assert line("a\nb \ud800")["message"] == "a\nb ?"
    try:
        raise ValueError("secret of the test")
    except ValueError:
        assert "ValueError: secret of the test" in str(line("x", error=True)["exception"])
