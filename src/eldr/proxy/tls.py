"""TLS towards clients and towards workers."""

import ssl

from eldr.errors import ConfigError
from eldr.settings_front import SecurityConfig


def server_tls(security: SecurityConfig) -> ssl.SSLContext | None:
    """The router's side of TLS; None without a certificate. Raises ConfigError for files that do not do."""
    if security.tls_cert is None and security.tls_key is None:
        return None
    if security.tls_cert is None or security.tls_key is None:
        raise ConfigError("security.tls_cert and security.tls_key go together; give both or none")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(security.tls_cert, security.tls_key)
    except OSError as error:  # ssl's errors are some
        raise ConfigError(
            f"security: {security.tls_cert!r} and {security.tls_key!r} are no certificate and its key: "
            f"{error.strerror or error}"
        ) from None
    return context


def worker_tls(security: SecurityConfig) -> ssl.SSLContext:
    """How workers at https:// are checked. Raises ConfigError for a file that holds no certificate."""
    try:
        return ssl.create_default_context(cafile=security.worker_ca)
    except OSError as error:
        raise ConfigError(
            f"security.worker_ca: {security.worker_ca!r} holds no certificates: {error.strerror or error}"
        ) from None
