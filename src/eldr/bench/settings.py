"""What a comparison of policies on local engines runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eldr.bench.results import COMPARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One comparison.

    out: folder for the report, the records and the logs.
    model: folder of the served model.
    decode: decode workers. requests: prompts to serve; as many others are calibrated on.
    max_tokens: output tokens of every request.
    batch: requests in flight a decode worker. All requests are there from the start, in an order of their
        own for each repeat, and the next one is sent when one ends. So every policy meets the same backlog,
        and other work on the machine cannot change how many requests decode together.
    rate: requests a second instead: Poisson arrivals, at the same times under every policy.
    repeats: runs of each policy; each repeat has arrivals of its own, the same for all policies.
    prompts: folder or file of prompts, or None for the usual ones.
    dtype: of weights and KV cache.
    """

    out: Path
    model: Path
    decode: int = 3
    requests: int = 200
    max_tokens: int = 64
    batch: int = 10
    rate: float | None = None
    policies: tuple[str, ...] = COMPARED
    repeats: int = 1
    prompts: Path | None = None
    dtype: Literal["bfloat16", "float32"] = "float32"
    seed: int = 0

    @property
    def in_flight(self) -> int:
        """Requests in flight on all decode workers together."""
        return self.batch * self.decode

    @property
    def logs(self) -> Path:
        return self.out / "logs"

    @property
    def profile(self) -> Path:
        return self.out / "profile.safetensors"

    def step_log(self, worker: str) -> Path:
        """Where a decode worker logs its steps."""
        return self.logs / f"steps-{worker}.jsonl"
