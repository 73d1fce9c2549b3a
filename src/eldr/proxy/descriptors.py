"""File descriptors: how many the router may have, and how many connections of clients these allow."""

import logging
import resource
from contextlib import suppress

from eldr.config import Config

log = logging.getLogger(__name__)

KEPT_FREE = 64
"""For all but requests: logs, the listening socket, checks of workers, clients that are turned away."""

A_CLIENT = 3
"""What a client may take: its connection, and one to each of two workers; the first is kept for a moment."""


def raise_limit(config: Config) -> None:
    """Take as many descriptors as may be had; warn where they allow fewer clients than requests may run."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS calls its limit infinite, and then refuses it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most, in_flight = most_connections(config.limits.connections), config.limits.in_flight
    if most * config.processes < in_flight:
        log.warning(
            "limits.in_flight is %d, but only %d clients can be connected: raise limits.connections and the "
            "hard limit of open files (ulimit -Hn, LimitNOFILE=), now %d; %d are needed",
            *(in_flight, most * config.processes, hard),
            KEPT_FREE + A_CLIENT * -(-in_flight // config.processes),
        )


def most_connections(wanted: int) -> int:
    """How many connections of clients there may be, of those wanted."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (soft - KEPT_FREE) // A_CLIENT))
