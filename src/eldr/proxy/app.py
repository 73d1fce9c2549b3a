"""The paths that the router answers."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec
from aiohttp import HttpVersion11, web

from eldr import __version__
from eldr.config import Config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.dialects import DIALECTS, PASSED_ON
from eldr.proxy.fleet import Fleet
from eldr.proxy.keys import CHECKED, client_keys, key_check
from eldr.proxy.models import merged_models
from eldr.proxy.router import Router
from eldr.proxy.upstream import Upstream

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DRAINING: web.AppKey[asyncio.Event] = web.AppKey("draining", asyncio.Event)
"""Set once the router has been told to stop."""

METRICS: web.AppKey[RouterMetrics] = web.AppKey("metrics", RouterMetrics)

DIRECT: web.AppKey[dict[str, Handler]] = web.AppKey("direct", dict)
"""Handlers of POST by path that nothing stands before, so that looking for it can be spared."""


def create_app(
    router: Router, upstream: Upstream, fleets: tuple[Fleet, ...], metrics: RouterMetrics, config: Config
) -> web.Application:
    """The web application around a router."""

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(request: web.Request) -> web.Response:
        missing = [fleet.role for fleet in fleets if not fleet.has_worker()]
        draining = request.app[DRAINING].is_set()
        told = {"ready": not (missing or draining), "missing": missing, "draining": draining}
        return web.json_response(told, status=200 if told["ready"] else 503)

    async def models(request: web.Request) -> web.Response:
        up = [worker for fleet in fleets for worker in fleet.pool.workers if fleet.is_up(worker.id)]
        authorization = None if CHECKED in request else request.headers.get("Authorization")
        cards = await merged_models(upstream, up, config.health_timeout_s, authorization)
        if not cards:
            text, again_s = "no worker tells which models it serves", math.ceil(config.health_interval_s)
            return error_answer(503, text, "no_worker_available", again_s)
        return _json({"object": "list", "data": cards})

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": METRICS_TYPE})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    keys = client_keys(config.security)
    checks = [key_check(keys, metrics)] if keys else []
    app = web.Application(client_max_size=config.body_limit_bytes, middlewares=[*checks, openai_errors])
    app[DRAINING], app[METRICS] = asyncio.Event(), metrics
    gets = {
        "/v1/models": models,
        "/health": health,
        "/ready": ready,
        "/metrics": exposition,
        "/version": version,
    }
    posts: dict[str, Handler] = dict.fromkeys((*DIALECTS, *PASSED_ON), router.handle)
    app[DIRECT] = {} if checks else posts
    for path, handler in posts.items():
        app.router.add_post(path, handler, expect_handler=go_on)
    for path, handler in gets.items():
        app.router.add_get(path, handler, expect_handler=go_on)
    known = {*posts, *gets}

    async def unknown(request: web.Request) -> NoReturn:
        raise (
            web.HTTPMethodNotAllowed(request.method, ())
            if request.rel_url.raw_path in known
            else web.HTTPNotFound()
        )

    app.router.add_route("*", "/{path:.*}", unknown, expect_handler=go_on)
    return app


async def go_on(request: web.Request) -> None:
    """Let a client that waits for it send its body, whatever its `Expect` says.

    RFC 9110, 10.1.1, lets a server ignore what it does not know; aiohttp's own handler would quote it.
    """
    if request.version >= HttpVersion11 and request.can_read_body:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer is still to begin


@web.middleware
async def openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer unknown paths and methods in OpenAI's error form."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return error_answer(404, f"Unknown path: {request.method} {request.path}", "not_found_error")
    except web.HTTPMethodNotAllowed:
        return error_answer(405, f"{request.path} does not take {request.method}", "invalid_request_error")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
