"""Checks that routing changed no output."""

from collections.abc import Mapping, Sequence

import msgspec

from eldr.bench.results import PolicyRun


class Difference(msgspec.Struct, frozen=True):
    """An answer that is not plain vLLM's. same: characters that both begin with."""

    policy: str
    repeat: int
    request: int
    worker: str | None
    same: int
    expected: str
    got: str


def differences(runs: Sequence[PolicyRun], reference: Mapping[str, str]) -> list[Difference]:
    """Compare every answer of every run with the reference output of its prompt."""
    return [
        Difference(
            policy=run.policy,
            repeat=run.repeat,
            request=reply.index,
            worker=reply.record.decode_worker,
            same=_common(reference[reply.prompt], reply.text),
            expected=reference[reply.prompt],
            got=reply.text,
        )
        for run in runs
        for reply in run.replies
        if reply.text != reference[reply.prompt]
    ]


def _common(left: str, right: str) -> int:
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
