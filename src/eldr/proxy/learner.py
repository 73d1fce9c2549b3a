"""What may learn from the requests of a router, and change how it routes (eldr.adapt)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eldr.clock import Clock
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RequestRecord
from eldr.profile.artifact import Profile
from eldr.proxy.fleet import Fleet
from eldr.proxy.signer import Signer
from eldr.types import ExpertCounts


@dataclass(frozen=True, slots=True)
class Live:
    """The parts of a running router that a learner sees and changes, all on its event loop.

    profile: what it started with. model: its name, as the first worker serves it. folder: that all processes
    of this router have; None where it is the only one.
    """

    decode: Fleet
    signer: Signer
    metrics: RouterMetrics
    clock: Clock
    profile: Profile | None
    model: Callable[[], str]
    folder: Path | None = None


class Learner(Protocol):
    """Sees each request as it ends, and runs beside the router until it is cancelled."""

    def saw(self, record: RequestRecord, counts: ExpertCounts | None) -> None:
        """Note a request; on its path, so this must be quick and must not fail."""
        ...

    async def run(self, live: Live) -> None:
        """Learn for ever."""
        ...


Learners = Callable[[int], Learner]
"""Gives the learner of each process of a router, by its row; made before they are forked."""
