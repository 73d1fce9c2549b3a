"""One JSON line a step that decodes, for plots of active experts over time."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from eldr.capture.plan import StepReport

logger = logging.getLogger("vllm.eldr.steplog")


class StepLog:
    """Appends `{"t", "kind", "batch", "active_mean", "active"}` lines to a file.

    t is the wall clock in seconds when the step's output was handled, batch the number of requests, active
    the distinct experts per MoE layer. Each line is written at once, so a killed engine loses none; after
    `max_steps` lines the log stops growing.
    """

    def __init__(self, path: str, max_steps: int) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the engine
        self._left = max_steps

    def write(self, report: StepReport) -> None:
        """Logs one step, unless it only prefills."""
        if self._left == 0 or report.plan.kind == "prefill":
            return
        self._left -= 1
        line = {
            "t": round(time.time(), 6),
            "kind": report.plan.kind,
            "batch": report.plan.requests,
            "active_mean": round(float(report.active.mean()), 4),
            "active": report.active.tolist(),
        }
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        if self._left == 0:
            logger.warning("ELDR: the step log %s is full and stops here", self._file.name)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
