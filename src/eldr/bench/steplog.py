"""Reads the decode steps that engines log: when, how many requests, how many experts."""

from pathlib import Path

import msgspec


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One decode step. at_s: from the start of the run; active: distinct experts, mean over layers."""

    at_s: float
    worker: str
    batch: int
    active: float


class _Line(msgspec.Struct, frozen=True):
    t: float
    kind: str
    batch: int
    active_mean: float


class StepLog:
    """The step log of one worker, from now on; the engine goes on writing it."""

    def __init__(self, worker: str, path: Path) -> None:
        self.worker, self.path = worker, path
        self._offset = path.stat().st_size if path.exists() else 0

    def steps(self, started_at: float) -> list[Step]:
        """The decode steps since this object was made. started_at: Unix time of the run's start."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        lines = (msgspec.json.decode(line, type=_Line) for line in whole.splitlines())
        return [
            Step(line.t - started_at, self.worker, line.batch, line.active_mean)
            for line in lines
            if line.kind == "decode"
        ]
