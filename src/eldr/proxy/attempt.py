"""One request on one worker, and what its end says of the worker."""

from collections.abc import Callable
from types import TracebackType

from eldr.errors import UpstreamError
from eldr.pool import Reservation
from eldr.proxy.breaker import Breaker
from eldr.proxy.relay import RefusalError
from eldr.proxy.upstream import ExhaustedError
from eldr.types import Decision, PoolView


class Attempt:
    """One request on one worker, which is chosen for the time of a block, with its share of the load.

    ended: told how the block ended, before that share is given back.
    pulls_kv: the worker was to pull a KV cache, which may be gone without its fault.
    """

    def __init__(
        self,
        reservation: Reservation,
        decision: Decision,
        view: PoolView,
        breaker: Breaker,
        ended: Callable[["Attempt", BaseException | None], None],
    ) -> None:
        self.worker, self.decision, self.view = reservation.worker, decision, view
        self._reservation, self._ended = reservation, ended
        self._breaker, self._generation = breaker, breaker.begin()
        self.broke_midway = self.pulls_kv = False

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ended(self, error)
        finally:
            self._reservation.release()

    def answered(self, status: int) -> None:
        """Note the status of the worker's answer."""
        if status < 500:
            self._breaker.answered(self._generation)

    @property
    def is_news(self) -> bool:
        """Does it say anything of the worker as it is now? Not once the breaker opened after it began."""
        return self._generation == self._breaker.generation

    def failed(self) -> None:
        """Note that the worker failed after output, so that the request ends without an exception."""
        self.broke_midway = True
        self._breaker.failed(self._generation)

    def ended(self, error: BaseException | None) -> None:
        """Judge by how the request ended.

        Statuses 4xx and 503 say nothing, nor does a client's leaving, nor what the router itself lacks.
        """
        if isinstance(error, RefusalError) and error.status == 500 and self.pulls_kv:
            self._breaker.doubted(self._generation)
        elif isinstance(error, ExhaustedError):
            pass
        elif isinstance(error, UpstreamError) or (isinstance(error, RefusalError) and is_fault(error.status)):
            self._breaker.failed(self._generation)
        elif error is None and not self.broke_midway:
            self._breaker.succeeded(self._generation)
        self._breaker.end(self._generation)


def is_fault(status: int) -> bool:
    """Is an answer of this status the worker's fault? 503 is overload, which passes by itself."""
    return status >= 500 and status != 503
