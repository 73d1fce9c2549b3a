"""API keys: of clients, which the router checks, and of workers, which it shows. They are never logged."""

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from eldr.errors import ConfigError
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.request import Request
from eldr.proxy.response import Response
from eldr.settings_front import SecurityConfig

CLIENT_VARIABLE, WORKER_VARIABLE = "ELDR_API_KEYS", "ELDR_WORKER_KEY"

OPEN_PATHS = ("/health", "/ready", "/version", "/metrics")
"""Paths that need no key: those that a cluster's own tools ask."""

Check = Callable[[Request], Response | None]
"""Lets a request in, or gives the answer that turns it away."""


def client_keys(security: SecurityConfig) -> tuple[str, ...]:
    """The keys of clients, none if everybody may use the router. Raises ConfigError for a bad file."""
    return _keys("api_keys", security.api_keys, CLIENT_VARIABLE)


def worker_authorization(security: SecurityConfig) -> str | None:
    """The Authorization header for workers, or None. Raises ConfigError for a bad file."""
    keys = _keys("worker_key", security.worker_key, WORKER_VARIABLE)
    if len(keys) > 1:
        raise ConfigError("security.worker_key: more than one key is given; workers get one")
    return f"Bearer {keys[0]}" if keys else None


def key_check(keys: Iterable[str], metrics: RouterMetrics) -> Check:
    """A check that lets only requests with one of the keys in."""
    digests = [_digest(key.encode()) for key in keys]

    def check(request: Request) -> Response | None:
        if request.path in OPEN_PATHS:
            return None
        given = _digest(_given(request))
        # Of digests and of all keys, so that the time tells neither a key's length nor which one is near.
        if sum(hmac.compare_digest(given, digest) for digest in digests):
            request.authorized = True
            return None
        metrics.client_faults.labels("unauthorized").inc()
        answer = error_answer(401, "this needs a valid API key", "authentication_error")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    return check


def _given(request: Request) -> bytes:
    """The key of `Authorization: Bearer KEY`, or of `x-api-key`, as clients of /v1/messages send it."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    return key.strip().encode(errors="surrogateescape")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _keys(setting: str, path: str | None, variable: str) -> tuple[str, ...]:
    """Keys from a file, or else from the environment. No message tells what they hold."""
    if path is None:
        text = os.environ.get(variable, "").replace(",", "\n")
        if variable in os.environ and not text.strip():  # to go on would let everybody in
            raise ConfigError(f"{variable} is set but holds no key; give it one, or unset it")
    else:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"security.{setting}: cannot read {path!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"security.{setting}: {path!r} is no text") from None
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if path is not None and not keys:
        raise ConfigError(f"security.{setting}: {path!r} holds no key")
    if not all(key.isprintable() and key.isascii() for key in keys):
        raise ConfigError(f"security.{setting}: a key holds more than printable ASCII characters")
    return keys
