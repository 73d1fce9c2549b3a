"""What the log need not say with every request."""

from eldr.clock import Clock

INTERVAL_S = 60.0


class Seldom:
    """Tells, for each kind of message, whether the last one was INTERVAL_S ago or longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_s: dict[str, float] = {}

    def __call__(self, kind: str) -> bool:
        now_s = self._clock.now_s()
        due = now_s - self._said_s.get(kind, -INTERVAL_S) >= INTERVAL_S
        if due:
            self._said_s[kind] = now_s
        return due
