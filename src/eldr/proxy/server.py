"""The router as a process: built from settings, checked, served, and drained when told to stop."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from aiohttp import web

from eldr.clock import MonotonicClock
from eldr.config import ROLES, Config
from eldr.errors import ConfigError, EldrError
from eldr.ledger import Ledger
from eldr.metrics.decisions import DecisionLog
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RecordWriter
from eldr.policy import Policy, create_policy
from eldr.profile.artifact import Profile
from eldr.proxy.admin import admin_site
from eldr.proxy.app import DRAINING, create_app
from eldr.proxy.budget import RetryBudget
from eldr.proxy.discovery.all import discovered_roles, sources
from eldr.proxy.discovery.file import FileSource, Reload, workers_of
from eldr.proxy.discovery.reconcile import Reconciler, following
from eldr.proxy.discovery.source import Source
from eldr.proxy.fleet import Fleet
from eldr.proxy.front import FrontRunner
from eldr.proxy.gate import Gate
from eldr.proxy.health import HealthChecker
from eldr.proxy.membership import MEMBERSHIP, Membership
from eldr.proxy.models import ModelGuard
from eldr.proxy.processes import Share, Supervisor
from eldr.proxy.router import Router
from eldr.proxy.signer import Signer
from eldr.proxy.startup import check_counts_come, wait_for_workers
from eldr.proxy.tls import server_tls
from eldr.proxy.trace import Tracing, open_tracing
from eldr.proxy.upstream import Upstream

log = logging.getLogger(__name__)


def serve(config: Config, reload: Reload | None = None) -> None:
    """Run the router until SIGTERM or SIGINT. Raises EldrError for whatever keeps it from starting.

    reload: how to read the workers again, if they come from a file.
    """
    profile = Profile.load(Path(config.profile)) if config.profile else None
    if config.processes > 1:
        _serve_shared(config, profile, reload)
        return
    policies = _policies(config, profile)
    with (
        _bound_socket(config.host, config.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(config, profile, policies, listener, reload=reload))


def _serve_shared(config: Config, profile: Profile | None, reload: Reload | None) -> None:
    if config.admin.port is not None:
        raise ConfigError(
            "the admin API changes one process; with processes > 1 leave it out, and change the workers' file"
        )
    _policies(config, profile)  # what is wrong with them is said here, once
    with ExitStack() as sockets:
        first = sockets.enter_context(_bound_socket(config.host, config.port))
        port = first.getsockname()[1]
        first.close()  # it made sure that nobody else has the port, which is then shared
        listeners = [
            sockets.enter_context(_bound_socket(config.host, port, shared=True))
            for _ in range(config.processes)
        ]

        def work(share: Share) -> None:
            policies = _policies(config, profile, share.row)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(config, profile, policies, share.listener, share, reload))

        ledgers = {role: Ledger.shared(config.processes) for role in ROLES}
        Supervisor(listeners, ledgers, work).run()


async def _serve(
    config: Config,
    profile: Profile | None,
    policies: tuple[Policy, Policy],
    listener: socket.socket,
    share: Share | None = None,
    reload: Reload | None = None,
) -> None:
    async with running_app(config, profile, policies, share, reload) as app:
        await _listen(app, listener, config, share)


@asynccontextmanager
async def running_app(
    config: Config,
    profile: Profile | None,
    policies: tuple[Policy, Policy],
    share: Share | None = None,
    reload: Reload | None = None,
) -> AsyncIterator[web.Application]:
    """The router's application once its workers are there and fit, with health checks running behind it.

    policies: for prefill and for decode workers. share: what it has in common with other processes, if any.
    reload: how to read the workers again, if they come from a file.
    Raises EldrError, see eldr.proxy.startup.
    """
    clock, metrics = MonotonicClock(), RouterMetrics(share.metrics if share else None)
    ledgers = share.ledgers if share else {}
    prefill = Fleet(
        "prefill", config.prefill, policies[0], metrics, clock, config.breaker, ledgers.get("prefill")
    )
    decode = Fleet(
        "decode", config.decode, policies[1], metrics, clock, config.breaker, ledgers.get("decode")
    )
    if profile is not None:
        decode.set_centroids(profile.centroids, one_each="decode" not in discovered_roles(config))
    signer = Signer(profile, clock)
    records = RecordWriter(config.records) if config.records else None
    observe = config.observe
    decisions = None
    if observe.decision_log:
        path = Path(observe.decision_log)
        if share is not None:  # files that several processes rotate would lose lines
            path = path.with_stem(f"{path.stem}-{share.row}")
        decisions = DecisionLog(str(path), observe.decision_log_bytes, observe.decision_log_files)
    tracing = open_tracing(observe.otlp_endpoint) if observe.otlp_endpoint else Tracing()
    upstream = Upstream(config)
    try:
        checker = HealthChecker(
            (prefill, decode), upstream, ModelGuard(profile.info.model if profile else None), config
        )
        with closing(Membership(checker, config.admin.drain_s)) as membership:
            reconciler = Reconciler(membership, metrics)
            async with following(reconciler, [*_file_source(config, reload, reconciler), *sources(config)]):
                try:
                    await wait_for_workers(checker, config.wait_s)
                    if profile is not None:
                        await check_counts_come(prefill, upstream, signer)
                except EldrError as error:
                    if share is None or not share.restarted:
                        raise
                    log.warning("starting all the same, beside the other processes: %s", error)
                gate = Gate(config.limits)
                metrics.queued.set_function(lambda: float(gate.waiting))
                router = Router(
                    prefill,
                    decode,
                    upstream,
                    signer,
                    metrics,
                    clock,
                    label_header=config.label_header,
                    budget=RetryBudget(config.retry, clock),
                    gate=gate,
                    records=records,
                    decisions=decisions,
                    tracing=tracing,
                )
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


async def _listen(app: web.Application, listener: socket.socket, config: Config, share: Share | None) -> None:
    """Serve until a signal, or the parent's end; then, after a notice, refuse connections and drain."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if share is not None:
        asyncio.get_running_loop().add_reader(share.lifeline, stop.set)
    tls = server_tls(config.security)
    runner = FrontRunner(app, config, config.drain_s)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=1024, ssl_context=tls).start()
        host, port = listener.getsockname()[:2]
        log.info(
            "listening on %s://%s:%d: %d prefill and %d decode workers, policy %s",
            *("https" if tls else "http", host, port),
            *(*(len(app[MEMBERSHIP].workers(role)) for role in ROLES), config.policy.name),
        )
        if share is not None:
            share.listening()
        await stop.wait()
        if share is not None:
            asyncio.get_running_loop().remove_reader(share.lifeline)
        app[DRAINING].set()
        if config.drain_notice_s:
            log.info("stopping in %g s; /ready says so", config.drain_notice_s)
            await asyncio.sleep(config.drain_notice_s)
        log.info("stopping: running requests may take %g s", config.drain_s)
    finally:
        await runner.cleanup()


def _file_source(config: Config, reload: Reload | None, reconciler: Reconciler) -> list[Source]:
    """The configuration file as a source, if there is one, which SIGHUP has read at once."""
    if reload is None:
        return []
    source = FileSource(reload, config)
    reconciler.hold(source.name, workers_of(config))
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, source.asked.set)
    return [source]


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _bound_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that holds the address but does not listen yet; `shared` with others of this user.

    Raises ConfigError if it cannot be had.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is in use; choose another with --port") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _policies(config: Config, profile: Profile | None, row: int = 0) -> tuple[Policy, Policy]:
    """For prefill workers, the least loaded; for decode workers, what is configured.

    row: of this process; each draws random numbers of its own.
    """
    rng = np.random.default_rng((config.seed, row) if row else config.seed)
    options = config.policy.options
    if config.policy.name == "locality_band":
        if profile is None:
            log.warning("locality_band without --profile routes by load alone")
        else:
            options = {"tau": profile.info.tau, **options}
    return create_policy("jsq", rng=rng), create_policy(config.policy.name, rng=rng, **options)
