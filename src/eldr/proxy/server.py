"""The router as a process: its socket and signals, served, and drained when told to stop."""

import asyncio
import errno
import gc
import logging
import signal
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from eldr.config import ROLES, Config
from eldr.errors import ConfigError, ProfileError
from eldr.ledger import Ledger
from eldr.policy import Policy, create_policy, needs_profile, options_by_profile
from eldr.profile.artifact import Profile
from eldr.proxy.app import App
from eldr.proxy.clients import Clients
from eldr.proxy.descriptors import raise_limit
from eldr.proxy.discovery.file import Reload
from eldr.proxy.learner import Learner, Learners
from eldr.proxy.processes import Share, Supervisor
from eldr.proxy.profiles import Profiles, learned_before
from eldr.proxy.running import Policies, running_app
from eldr.proxy.tls import server_tls

log = logging.getLogger(__name__)

COLLECTED_AFTER = 50_000
"""Objects made since garbage was collected, after which it is again (Python: 700, half a request's)."""

PATIENCE_S = 15.0
"""For a process to end after its drain; it may still have spans to send."""


def serve(config: Config, reload: Reload | None = None, learners: Learners | None = None) -> None:
    """Run the router until SIGTERM or SIGINT. Raises EldrError for whatever keeps it from starting.

    reload: how to read the workers again, if they come from a file. learners: see requests, run beside.
    """
    raise_limit(config)
    profiles = _profiles(config)
    if config.processes > 1:
        _serve_shared(config, profiles, reload, learners)
        return
    learner = None if learners is None else learners(0)
    policies = partial(_policies, config)
    _check_policy(config, profiles)
    with (
        _bound_socket(config.host, config.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(config, profiles, policies, listener, reload=reload, learner=learner))


def _profiles(config: Config) -> Profiles:
    """What was given, and what was learned before if the policy asks for one. Raises ProfileError."""
    asks = config.adapt.save is not None and needs_profile(config.policy.name)
    learned = learned_before(Path(config.adapt.save or "")) if asks else None
    try:
        return Profiles(Profile.load(Path(config.profile)) if config.profile else None, learned)
    except ProfileError as error:
        if learned is None:
            raise
        log.warning("--profile is not there if what was learned does not fit: %s", error)
        return Profiles(None, learned)


def _serve_shared(
    config: Config, profiles: Profiles, reload: Reload | None, learners: Learners | None
) -> None:
    if config.limits.in_flight < config.processes:
        raise ConfigError(
            f"limits.in_flight: {config.limits.in_flight} is less than one for each of {config.processes} "
            "processes, which divide it; raise it, or run fewer"
        )
    _check_policy(config, profiles)
    with ExitStack() as sockets:
        first = sockets.enter_context(_bound_socket(config.host, config.port))
        port = first.getsockname()[1]
        first.close()  # it made sure that nobody else has the port, which is then shared
        listeners = [
            sockets.enter_context(_bound_socket(config.host, port, shared=True))
            for _ in range(config.processes)
        ]

        def work(share: Share) -> None:
            policies = partial(_policies, config, row=share.row)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                learner = None if learners is None else learners(share.row)
                runner.run(_serve(config, profiles, policies, share.listener, share, reload, learner))

        ledgers = {role: Ledger.shared(config.processes) for role in ROLES}
        drain_s = config.drain_notice_s + config.drain_s
        Supervisor(listeners, ledgers, work, drain_s + PATIENCE_S).run()


async def _serve(
    config: Config,
    profiles: Profiles,
    policies: Policies,
    listener: socket.socket,
    share: Share | None = None,
    reload: Reload | None = None,
    learner: Learner | None = None,
) -> None:
    if reload is None:  # else it is asked
        text = "SIGHUP changes nothing: there is no file of --config to read again"
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, log.info, text)
    if share is not None:
        _end_with_parent(share.lifeline)
    async with running_app(config, profiles, policies, share, reload, learner) as app:
        await _listen(app, listener, config, share)


def _end_with_parent(lifeline: int) -> None:
    """Take the parent's end as a SIGTERM, which ends a process at once that does not serve yet."""
    loop = asyncio.get_running_loop()

    def parent_ended() -> None:
        loop.remove_reader(lifeline)
        signal.raise_signal(signal.SIGTERM)

    loop.add_reader(lifeline, parent_ended)


async def _listen(app: App, listener: socket.socket, config: Config, share: Share | None) -> None:
    """Serve until a signal; then, after a notice, refuse connections and drain."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tls = server_tls(config.security)
    clients = Clients(app.answer, config, app.metrics)
    server = await asyncio.get_running_loop().create_server(
        clients.connection,
        sock=listener,
        backlog=1024,
        ssl=tls,
        ssl_handshake_timeout=config.limits.header_timeout_s if tls else None,
    )
    try:
        host, port = listener.getsockname()[:2]
        log.info(
            "listening on %s://%s:%d: %d prefill and %d decode workers, policy %s",
            *("https" if tls else "http", host, port),
            *(*(len(app.membership.workers(role)) for role in ROLES), config.policy.name),
        )
        if share is not None:
            share.listening()
        gc.freeze()  # what is there now stays; the collector need not look at it with every request
        gc.set_threshold(COLLECTED_AFTER)
        await stop.wait()
        app.draining.set()
        if config.drain_notice_s:
            log.info("stopping in %g s; /ready says so", config.drain_notice_s)
            await asyncio.sleep(config.drain_notice_s)
        log.info("stopping: running requests may take %g s", config.drain_s)
    finally:
        server.close()
        await clients.drain(config.drain_s)
    log.info("stopped")


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


def _check_policy(config: Config, profiles: Profiles) -> None:
    """Say at once, and once, what is wrong with the policy, or that it has no profile yet."""
    _policies(config, profiles.given)
    name = config.policy.name
    if profiles.given is None and profiles.learned is None and needs_profile(name):
        if config.adapt.refit:
            log.info("%s without --profile routes by load until it has learned one", name)
        else:
            log.warning("%s without --profile routes by load alone: give one, or let it learn", name)


def _policies(config: Config, profile: Profile | None, row: int = 0) -> tuple[Policy, Policy]:
    """For prefill workers, the least loaded; for decode workers, what is configured, as the profile has it.

    row: of this process; each draws random numbers of its own.
    """
    rng = np.random.default_rng((config.seed, row) if row else config.seed)
    options = config.policy.options
    if profile is not None:
        options = options_by_profile(config.policy.name, options, profile.info.tau)
    return create_policy("jsq", rng=rng), create_policy(config.policy.name, rng=rng, **options)
