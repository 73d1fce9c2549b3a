"""The paths that the router answers."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import msgspec
from multidict import CIMultiDict

from eldr import __version__
from eldr.config import Config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.dialects import DIALECTS, PASSED_ON
from eldr.proxy.fleet import Fleet
from eldr.proxy.keys import client_keys, key_check
from eldr.proxy.membership import Membership
from eldr.proxy.models import merged_models
from eldr.proxy.request import Request
from eldr.proxy.response import Response, json_response
from eldr.proxy.router import Router
from eldr.proxy.upstream import Upstream

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """The application around a router.

    draining: set once the router has been told to stop.
    """

    def __init__(
        self,
        router: Router,
        upstream: Upstream,
        fleets: tuple[Fleet, ...],
        membership: Membership,
        metrics: RouterMetrics,
        config: Config,
    ) -> None:
        self.membership, self.metrics, self.draining = membership, metrics, asyncio.Event()
        self._upstream, self._fleets, self._config = upstream, fleets, config
        keys = client_keys(config.security)
        self._check = key_check(keys, metrics) if keys else None
        self._posts: dict[str, Handler] = dict.fromkeys((*DIALECTS, *PASSED_ON), router.handle)
        self._gets: dict[str, Handler] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._exposition,
            "/version": self._version,
        }
        self._handlers = {"POST": self._posts, "GET": self._gets, "HEAD": self._gets}

    def answer(self, request: Request) -> Awaitable[Response]:
        """The answer to any request."""
        if self._check is not None and (refusal := self._check(request)) is not None:
            return _at_once(refusal)
        handlers = self._handlers.get(request.method, {})
        return handlers.get(request.path, self._unknown)(request)

    async def _unknown(self, request: Request) -> Response:
        allowed = (
            "POST" if request.path in self._posts else "GET, HEAD" if request.path in self._gets else None
        )
        if allowed is None:
            return error_answer(404, f"Unknown path: {request.method} {request.path}", "not_found_error")
        answer = error_answer(405, f"{request.path} does not take {request.method}", "invalid_request_error")
        answer.headers["Allow"] = allowed
        return answer

    async def _health(self, _: Request) -> Response:
        return json_response(b'{"status":"ok"}')

    async def _ready(self, _: Request) -> Response:
        missing = [fleet.role for fleet in self._fleets if not fleet.has_worker()]
        draining = self.draining.is_set()
        told = {"ready": not (missing or draining), "missing": missing, "draining": draining}
        return json_response(msgspec.json.encode(told), 200 if told["ready"] else 503)

    async def _models(self, request: Request) -> Response:
        config = self._config
        up = [worker for fleet in self._fleets for worker in fleet.pool.workers if fleet.is_up(worker.id)]
        authorization = None if request.authorized else request.headers.get("Authorization")
        cards = await merged_models(self._upstream, up, config.health_timeout_s, authorization)
        if not cards:
            text, again_s = "no worker tells which models it serves", math.ceil(config.health_interval_s)
            return error_answer(503, text, "no_worker_available", again_s)
        return json_response(msgspec.json.encode({"object": "list", "data": cards}))

    async def _exposition(self, _: Request) -> Response:
        return Response(200, self.metrics.exposition(), CIMultiDict({"Content-Type": METRICS_TYPE}))

    async def _version(self, _: Request) -> Response:
        return json_response(msgspec.json.encode({"version": __version__}))


async def _at_once(response: Response) -> Response:
    return response
