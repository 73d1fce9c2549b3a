"""The router's own log lines: text for people, or one JSON object a line, with the request they belong to."""

import logging
import os
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The client's id of the request that the running task serves; None outside of requests."""

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonFormatter(logging.Formatter):
    """A record as one JSON object. Fields: docs/metrics.md, "Logs"."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id.get(),
            "process": os.getpid(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({key: _writable(value) for key, value in line.items()}).decode()


def configure(log_format: Literal["text", "json"]) -> None:
    """Send the log of this process to standard error, in one of the two forms."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _writable(value: Any) -> Any:
    """Text from a client may hold lone surrogates, which are no UTF-8."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
