"""Settings of what the router tells about itself: its logs, decision log and traces."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from eldr.settings_units import URL


class ObserveConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the router is seen. Metrics are always there.

    log_format: lines for people, or one JSON object a line for machines.
    decision_log: file of one JSON line a routing decision, or None. docs/metrics.md, "Decision log".
    decision_log_bytes, decision_log_files: where it goes on in a new file, and how many files are kept.
    otlp_endpoint: URL that takes OpenTelemetry spans (http://HOST:4318/v1/traces), or None.
    """

    log_format: Literal["text", "json"] = "text"
    decision_log: str | None = None
    decision_log_bytes: Annotated[int, Meta(gt=0)] = 64 * 1024 * 1024
    decision_log_files: Annotated[int, Meta(ge=1)] = 4
    otlp_endpoint: Annotated[str, URL] | None = None
