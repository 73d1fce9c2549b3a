"""The router as a process: built from settings, checked, served, and drained when told to stop."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from aiohttp import web

from eldr.clock import MonotonicClock
from eldr.config import Config
from eldr.errors import ConfigError
from eldr.metrics.decisions import DecisionLog
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RecordWriter
from eldr.policy import Policy, create_policy
from eldr.profile.artifact import Profile
from eldr.proxy.admin import admin_site
from eldr.proxy.app import create_app
from eldr.proxy.budget import RetryBudget
from eldr.proxy.fleet import Fleet
from eldr.proxy.health import HealthChecker
from eldr.proxy.membership import MEMBERSHIP, Membership
from eldr.proxy.models import ModelGuard
from eldr.proxy.router import Router
from eldr.proxy.signer import Signer
from eldr.proxy.startup import check_counts_come, wait_for_workers
from eldr.proxy.trace import Tracing, open_tracing
from eldr.proxy.upstream import Upstream

log = logging.getLogger(__name__)


def serve(config: Config) -> None:
    """Run the router until SIGTERM or SIGINT. Raises EldrError for whatever keeps it from starting."""
    profile = Profile.load(Path(config.profile)) if config.profile else None
    policies = _policies(config, profile)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, profile, policies))


async def _serve(config: Config, profile: Profile | None, policies: tuple[Policy, Policy]) -> None:
    with _bound_socket(config.host, config.port) as listener:
        async with running_app(config, profile, policies) as app:
            await _listen(app, listener, config)


@asynccontextmanager
async def running_app(
    config: Config, profile: Profile | None, policies: tuple[Policy, Policy]
) -> AsyncIterator[web.Application]:
    """The router's application once its workers are there and fit, with health checks running behind it.

    policies: for prefill and for decode workers. Raises EldrError, see eldr.proxy.startup.
    """
    clock, metrics = MonotonicClock(), RouterMetrics()
    prefill = Fleet("prefill", config.prefill, policies[0], metrics, clock, config.breaker)
    decode = Fleet("decode", config.decode, policies[1], metrics, clock, config.breaker)
    if profile is not None:
        decode.set_centroids(profile.centroids)
    signer = Signer(profile, clock)
    records = RecordWriter(config.records) if config.records else None
    observe = config.observe
    decisions = (
        DecisionLog(observe.decision_log, observe.decision_log_bytes, observe.decision_log_files)
        if observe.decision_log
        else None
    )
    tracing = open_tracing(observe.otlp_endpoint) if observe.otlp_endpoint else Tracing()
    upstream = Upstream(config)
    try:
        checker = HealthChecker(
            (prefill, decode), upstream, ModelGuard(profile.info.model if profile else None), config
        )
        await wait_for_workers(checker, config.wait_s)
        if profile is not None:
            await check_counts_come(prefill, upstream, signer)
        router = Router(
            prefill,
            decode,
            upstream,
            signer,
            metrics,
            clock,
            label_header=config.label_header,
            budget=RetryBudget(config.retry, clock),
            records=records,
            decisions=decisions,
            tracing=tracing,
        )
        with closing(Membership(checker, config.admin.drain_s)) as membership:
            async with _background(checker.run()), admin_site(config.admin, membership):
                app = create_app(router, upstream, (prefill, decode), metrics, config)
                app[MEMBERSHIP] = membership
                yield app
    finally:
        await upstream.close()
        await tracing.close()
        for file in (records, decisions):
            if file is not None:
                file.close()


async def _listen(app: web.Application, listener: socket.socket, config: Config) -> None:
    """Serve until a signal; then refuse new connections and let running requests end, up to a limit."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Cancelling the handler when its client leaves is what cancels the request to the engine.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=config.drain_s)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=1024).start()
        host, port = listener.getsockname()[:2]
        log.info(
            "listening on http://%s:%d: %d prefill and %d decode workers, policy %s",
            *(host, port, len(config.prefill), len(config.decode), config.policy.name),
        )
        await stop.wait()
        log.info("stopping: running requests may take %g s", config.drain_s)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _bound_socket(host: str, port: int) -> socket.socket:
    """A socket that holds the address but does not listen yet. Raises ConfigError if it cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is in use; choose another with --port") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _policies(config: Config, profile: Profile | None) -> tuple[Policy, Policy]:
    """For prefill workers, the least loaded; for decode workers, what is configured."""
    rng = np.random.default_rng(config.seed)
    options = config.policy.options
    if config.policy.name == "locality_band":
        if profile is None:
            log.warning("locality_band without --profile routes by load alone")
        else:
            options = {"tau": profile.info.tau, **options}
    return create_policy("jsq", rng=rng), create_policy(config.policy.name, rng=rng, **options)
