"""What the engine says about its own capture: statistics for Prometheus, the step log, and the alarm."""

from __future__ import annotations

import logging
from typing import Any

from eldr.capture.options import CaptureOptions
from eldr.capture.plan import StepReport
from eldr.capture.steplog import StepLog

logger = logging.getLogger("vllm.eldr")

_ALARM_EVERY = 1000


class Tally:
    """Adds up what happened since `take` was called last, as plain data that vLLM can send to its front
    end.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self._log = StepLog(options.step_log, options.step_log_max_steps) if options.step_log else None
        self._broken_steps = 0
        self._data = self._empty()

    @staticmethod
    def _empty() -> dict[str, Any]:
        return {"layers": [], "active": [], "steps": {}, "payloads": {}, "unseen": 0}

    def step(self, report: StepReport) -> None:
        """One step. A step with choices that no hook saw is an alarm and no observation."""
        kind = report.plan.kind
        self._data["steps"][kind] = self._data["steps"].get(kind, 0) + 1
        if report.unseen:
            self._alarm(report.unseen)
            return
        if kind == "decode":
            self._data["layers"] = list(report.layers)
            self._data["active"].append(report.active.tolist())
        if self._log is not None:
            self._log.write(report)

    def payload(self, covered: int | None, tokens: int) -> None:
        """The counts of one prompt of `tokens` tokens: covered as in `scheduler.covered_tokens`."""
        if not covered or covered > tokens:
            outcome = "missing"
        else:
            outcome = "complete" if covered == tokens else "partial"
        self._data["payloads"][outcome] = self._data["payloads"].get(outcome, 0) + 1

    def take(self) -> dict[str, Any] | None:
        """The data since the last call; None if there is none."""
        data, self._data = self._data, self._empty()
        return data if data["steps"] or data["payloads"] else None

    def _alarm(self, unseen: int) -> None:
        self._data["unseen"] += unseen
        if self._broken_steps % _ALARM_EVERY == 0:
            logger.error(
                "ELDR: vLLM's routing hook did not report %d expert choices of this step, so requests get no "
                "expert counts. On CPUs start the engine with --enforce-eager: there torch.compile compiles "
                "the hook away.",
                unseen,
            )
        self._broken_steps += 1

    def close(self) -> None:
        """Closes the step log."""
        if self._log is not None:
            self._log.close()
