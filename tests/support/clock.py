"""A clock that tests move on, instead of waiting until a limit has passed."""

import time

import pytest


class SkippingClock:
    """The time of event loops, and of modules that took `monotonic` by name, which can skip some of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.skipped_s, now_s = 0.0, time.monotonic
        for name in ("time.monotonic", *names):
            monkeypatch.setattr(name, lambda *_: now_s() + self.skipped_s)

    def skip(self, seconds: float) -> None:
        """Let so much time have passed."""
        self.skipped_s += seconds
