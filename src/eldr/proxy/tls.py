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
    _check_accepted(context, security.tls_cert)
    return context


def _check_accepted(server: ssl.SSLContext, path: str) -> None:
    """Raise ConfigError for a certificate that no client takes today, as a handshake in memory tells."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever signed it, it vouches for itself here
    client.load_verify_locations(path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for end in (*ends, ends[0]):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason
            raise ConfigError(f"security.tls_cert: {path!r}: {reason}; renew it") from None


def worker_tls(security: SecurityConfig) -> ssl.SSLContext:
    """How workers at https:// are checked. Raises ConfigError for a file that holds no certificate."""
    try:
        return ssl.create_default_context(cafile=security.worker_ca)
    except OSError as error:
        raise ConfigError(
            f"security.worker_ca: {security.worker_ca!r} holds no certificates: {error.strerror or error}"
        ) from None
