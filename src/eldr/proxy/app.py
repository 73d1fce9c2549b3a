"""The paths that the router answers."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from eldr import __version__
from eldr.config import Config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.dialects import DIALECTS, PASSED_ON
from eldr.proxy.fleet import Fleet
from eldr.proxy.models import merged_models
from eldr.proxy.router import Router
from eldr.proxy.upstream import Upstream

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(
    router: Router, upstream: Upstream, fleets: tuple[Fleet, ...], metrics: RouterMetrics, config: Config
) -> web.Application:
    """The web application around a router."""

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        missing = [fleet.role for fleet in fleets if not fleet.has_worker()]
        return web.json_response({"ready": not missing, "missing": missing}, status=503 if missing else 200)

    async def models(request: web.Request) -> web.Response:
        up = [worker for fleet in fleets for worker in fleet.pool.workers if fleet.is_up(worker.id)]
        cards = await merged_models(
            upstream, up, config.health_timeout_s, request.headers.get("Authorization")
        )
        if not cards:
            return error_answer(503, "no worker tells which models it serves", "no_worker_available")
        return _json({"object": "list", "data": cards})

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": METRICS_TYPE})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    app = web.Application(client_max_size=config.body_limit_bytes, middlewares=[openai_errors])
    for path in (*DIALECTS, *PASSED_ON):
        app.router.add_post(path, router.handle)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/metrics", exposition)
    app.router.add_get("/version", version)
    return app


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
