"""Settings of how the router keeps its workers: frozen parts of eldr.config.Config. Times in seconds."""

from typing import Annotated

from msgspec import Meta, Struct

from eldr.settings_units import NAME_URL, Port, Seconds, SecondsOrNone


class BreakerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When the circuit breaker of a worker opens, and for how long.

    failures: in a row, without a whole answer between them, until it opens.
    open_s: of the first opening; each further one lasts twice as long, up to longest_open_s.
    calm_s: after this long without an opening, the next one is a first one again.
    """

    failures: Annotated[int, Meta(ge=1)] = 3
    open_s: Seconds = 1.0
    longest_open_s: Seconds = 30.0
    calm_s: Seconds = 60.0


class RetryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests may run a second time (eldr.proxy.budget).

    share: retries per request, in the long run. least_per_s: retries a second that are always allowed.
    burst: retries at once; when one worker dies, all requests that wait for its first byte run again.
    """

    share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    least_per_s: Annotated[float, Meta(ge=0)] = 1.0
    burst: Annotated[int, Meta(ge=0)] = 100


class AdminConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The admin API (eldr.proxy.admin), which runs when it has a port.

    key_file: file that holds its key; without one the key is that of the environment's ELDR_ADMIN_KEY.
    drain_s: after this long, a draining worker is removed with what it still runs.
    """

    port: Port | None = None
    host: str = "127.0.0.1"
    key_file: str | None = None
    drain_s: SecondsOrNone = 300.0


NameUrl = Annotated[str, NAME_URL]


class DnsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """DNS names behind which workers stand, one an address (eldr.proxy.discovery.dns).

    prefill, decode: http://NAME:PORT or https://NAME:PORT each. interval_s: how often they are resolved.
    """

    prefill: tuple[NameUrl, ...] = ()
    decode: tuple[NameUrl, ...] = ()
    interval_s: Seconds = 10.0


class KubernetesConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Pods that are workers (eldr.proxy.discovery.kubernetes).

    prefill, decode: label selectors. port: of the engine in the pods. namespace: None is the router's own.
    kubeconfig: file that says how to reach the API server; None is the cluster that the router runs in.
    """

    prefill: str | None = None
    decode: str | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    namespace: str | None = None
    kubeconfig: str | None = None
