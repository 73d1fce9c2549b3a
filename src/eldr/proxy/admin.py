"""The admin API: workers listed, added, drained and removed, on a port and with a key of its own."""

import hmac
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware
from msgspec import Meta, Struct

from eldr.errors import ConfigError
from eldr.proxy.answers import error_body
from eldr.proxy.changes import Change, Changes, Did
from eldr.proxy.fields import JSON_ERRORS
from eldr.proxy.membership import Membership, Seen, UnknownWorkerError
from eldr.settings_fleet import AdminConfig

log = logging.getLogger(__name__)

KEY_VARIABLE = "ELDR_ADMIN_KEY"
BODY_LIMIT_BYTES = 64 * 1024


class _NewWorker(Struct, forbid_unknown_fields=True):
    role: str
    url: str
    name: str | None = None


class _Limit(Struct, forbid_unknown_fields=True):
    limit_s: Annotated[float, Meta(ge=0)] | None = None


def admin_key(config: AdminConfig) -> str:
    """The key from its file or from the environment. Raises ConfigError when there is none.

    The message never tells what the file holds.
    """
    if config.key_file is None:
        key = os.environ.get(KEY_VARIABLE, "")
    else:
        try:
            key = Path(config.key_file).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"admin.key_file: cannot read {config.key_file!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"admin.key_file: {config.key_file!r} is no text") from None
    if not key.strip():
        raise ConfigError(
            f"the admin API needs a key; set admin.key_file to a file with one, or {KEY_VARIABLE}"
        )
    return key.strip()


def create_admin_app(membership: Membership, key: str, changes: Changes | None = None) -> web.Application:
    """The application behind the admin port. Every path needs `Authorization: Bearer KEY`.

    changes: where other processes learn of what is done here, if there are others.
    """

    def tell(do: Did, worker: Seen, limit_s: float | None = None) -> None:
        if changes is not None:
            changes.write(Change(do, worker.role, worker.url, worker.name, limit_s))

    async def list_all(_: web.Request) -> web.Response:
        return web.json_response({"workers": [asdict(worker) for worker in membership.snapshot()]})

    async def add(request: web.Request) -> web.Response:
        new = msgspec.json.decode(await request.read(), type=_NewWorker)
        worker = await membership.add(new.role, new.url.rstrip("/"), new.name)
        seen = membership.seen(worker.id)
        try:
            tell("add", seen)
        except OSError:
            membership.drain(worker.id)
            raise
        return web.json_response(asdict(seen), status=201)

    async def drain(request: web.Request) -> web.Response:
        limit = msgspec.json.decode(await request.read() or b"{}", type=_Limit)
        name = request.match_info["name"]
        tell("drain", membership.seen(name), limit.limit_s)
        membership.drain(name, limit.limit_s)
        return web.json_response(asdict(membership.seen(name)), status=202)

    async def remove(request: web.Request) -> web.Response:
        seen = membership.seen(request.match_info["name"])
        tell("remove", seen)
        membership.remove(seen.name)
        return web.Response(status=204)

    app = web.Application(
        client_max_size=BODY_LIMIT_BYTES, middlewares=[_openai_errors, _only_with(key), _config_errors]
    )
    app.router.add_get("/workers", list_all)
    app.router.add_post("/workers", add)
    app.router.add_post("/workers/{name}/drain", drain)
    app.router.add_delete("/workers/{name}", remove)
    return app


@asynccontextmanager
async def admin_site(
    config: AdminConfig, membership: Membership, changes: Changes | None = None
) -> AsyncIterator[None]:
    """Serve the admin API while the block runs, if a port is configured. Raises ConfigError."""
    if config.port is None:
        yield
        return
    app = create_admin_app(membership, admin_key(config), changes)
    runner = web.AppRunner(app, access_log=None, logger=_http_log())
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.host, config.port).start()
        except OSError as error:
            raise ConfigError(
                f"the admin API cannot listen on {config.host}:{config.port}: {error.strerror or error}; "
                "choose another port with --admin-port"
            ) from None
        log.info("admin API on http://%s:%d", config.host, runner.addresses[0][1])
        yield
    finally:
        await runner.cleanup()


def _http_log() -> logging.Logger:
    """For aiohttp, which would quote a header that is malformed or too long: it may hold the key."""
    http_log = logging.getLogger(f"{__name__}.http")
    http_log.addFilter(_without_quotes)
    return http_log


def _without_quotes(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.exc_info = None
    return True


def _only_with(key: str) -> Middleware:
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if hmac.compare_digest(given, expected):
            return await handler(request)
        return _error(401, "the admin API needs its key: Authorization: Bearer KEY", "authentication_error")

    return check


@web.middleware
async def _config_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what was asked for wrongly with 400 or 404, and what cannot be done with 503."""
    try:
        return await handler(request)
    except UnknownWorkerError as error:
        return _error(404, str(error), "not_found_error")
    except ConfigError as error:
        return _error(400, str(error), "invalid_request_error")
    except JSON_ERRORS as error:
        return _error(400, f"the body is not as expected: {error}", "invalid_request_error")
    except OSError as error:
        log.error("a change cannot be told to the other processes: %s", error)
        text = f"nothing is changed, since the other processes cannot be told: {error.strerror}; see TMPDIR"
        return _error(503, text, "internal_error")


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer unknown paths and methods in OpenAI's error form."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _error(404, f"Unknown path: {request.method} {request.path}", "not_found_error")
    except web.HTTPMethodNotAllowed:
        return _error(405, f"{request.path} does not take {request.method}", "invalid_request_error")


def _error(status: int, message: str, kind: str) -> web.Response:
    return web.Response(
        status=status, body=error_body(status, message, kind), content_type="application/json"
    )
