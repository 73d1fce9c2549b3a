"""What one calibration request showed: its expert counts in prefill and in decode."""

from dataclasses import dataclass
from typing import Protocol

from eldr.errors import CalibrationError
from eldr.types import Counts


@dataclass(frozen=True, slots=True)
class Observation:
    """The expert choices of one request.

    prefill, decode: uint32 [L, E]; sums = tokens x L x top_k. Decode counts leave out the last output token,
    which no forward pass has seen.
    prompt_tokens, output_tokens: as the engine reported them.
    """

    prefill: Counts
    decode: Counts
    top_k: int
    prompt_tokens: int
    output_tokens: int


def token_usage(answer: dict[str, object]) -> tuple[int, int]:
    """Prompt and output tokens by a completion answer; CalibrationError where it does not say."""
    usage = answer.get("usage")
    tokens = (
        [usage.get(key) for key in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    )
    match tokens:
        case [int(prompt), int(output)]:
            return prompt, output
    raise CalibrationError(f"the answer has no token usage ({usage!r}); is this a completions endpoint?")


class Source(Protocol):
    """A way to get an observation out of an engine."""

    name: str

    def body(self, body: dict[str, object]) -> dict[str, object]:
        """The completion request `body` with what makes the engine report its expert choices."""
        ...

    def parse(self, answer: dict[str, object]) -> Observation:
        """Read a completion answer; CalibrationError where it carries no trustworthy expert choices."""
        ...
