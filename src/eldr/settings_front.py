"""Settings of the router's face to clients: frozen parts of eldr.config.Config. Times in seconds."""

from typing import Annotated

from msgspec import Meta, Struct

from eldr.settings_units import Seconds

Bytes = Annotated[int, Meta(ge=1024, le=1024 * 1024)]


class LimitConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the router clients may take up. The size of bodies is `body_limit_bytes`.

    bodies_bytes: most that bodies of running requests take up together (503 beyond); small ones always may.
    in_flight: most requests at once; queued: most that wait for their turn behind these (429 beyond);
    queue_timeout_s: longest wait (503 beyond).
    connections: most of clients, in each process; a third of the files that it may open is a limit too.
    header_bytes: of the URL, and of each header, and four times that of all together; headers: most of them.
    header_timeout_s: from a connection's opening to the end of its first request's headers.
    body_timeout_s: from the headers to the end of the body.
    keep_alive_s: longest time between two requests on one connection.
    stall_timeout_s: longest time in which a client reads nothing of what waits for it.
    """

    in_flight: Annotated[int, Meta(ge=1)] = 4096
    queued: Annotated[int, Meta(ge=0)] = 1024
    queue_timeout_s: Seconds = 10.0
    bodies_bytes: Annotated[int, Meta(gt=0)] = 1024 * 1024 * 1024
    connections: Annotated[int, Meta(ge=1)] = 16384
    header_bytes: Bytes = 16 * 1024
    headers: Annotated[int, Meta(ge=8)] = 128
    header_timeout_s: Seconds = 20.0
    body_timeout_s: Seconds = 60.0
    keep_alive_s: Seconds = 75.0
    stall_timeout_s: Seconds = 60.0


class SecurityConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may use the router, and how it shows itself to workers. All are paths of files.

    api_keys: the clients' keys, one a line; without one, those of the environment's ELDR_API_KEYS, if any.
    worker_key: the key that workers ask for; without one, the environment's ELDR_WORKER_KEY, if any.
    tls_cert, tls_key: the router's certificate (with its chain) and key, as PEM; both or none.
    worker_ca: certificates, as PEM, that workers' certificates must be signed by; None for the system's.
    """

    api_keys: str | None = None
    worker_key: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    worker_ca: str | None = None
