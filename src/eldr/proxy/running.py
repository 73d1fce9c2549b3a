"""The router's application, built from settings, with everything that runs behind it while it is used."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from eldr.clock import Clock, MonotonicClock
from eldr.config import Config
from eldr.errors import EldrError
from eldr.metrics.decisions import DecisionLog
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RecordWriter
from eldr.policy import Policy
from eldr.profile.artifact import Profile
from eldr.proxy.admin import admin_site
from eldr.proxy.app import App
from eldr.proxy.budget import RetryBudget
from eldr.proxy.changes import Changes
from eldr.proxy.discovery.all import discovered_roles, sources
from eldr.proxy.discovery.file import FileSource, Reload, workers_of
from eldr.proxy.discovery.reconcile import Reconciler, following
from eldr.proxy.discovery.source import Source
from eldr.proxy.fleet import Fleet
from eldr.proxy.gate import Gate
from eldr.proxy.health import HealthChecker
from eldr.proxy.learner import Learner, Live
from eldr.proxy.membership import Membership
from eldr.proxy.models import ModelGuard
from eldr.proxy.probe import CountsProbe
from eldr.proxy.processes import Share, part
from eldr.proxy.profiles import Profiles
from eldr.proxy.router import Router
from eldr.proxy.signer import Signer
from eldr.proxy.startup import check_files, check_named_workers, wait_for_workers
from eldr.proxy.trace import Tracing, open_tracing
from eldr.proxy.upstream import Upstream
from eldr.settings_fleet import RetryConfig
from eldr.settings_front import LimitConfig

log = logging.getLogger(__name__)

Policies = Callable[[Profile | None], tuple[Policy, Policy]]
"""The policies for prefill and for decode workers, with the options that go with a profile."""


@asynccontextmanager
async def running_app(
    config: Config,
    profiles: Profiles,
    policies: Policies,
    share: Share | None = None,
    reload: Reload | None = None,
    learner: Learner | None = None,
) -> AsyncIterator[App]:
    """The router's application once its workers are there and fit, with health checks running behind it.

    share: what it has in common with other processes, if any.
    reload: how to read the workers again, if they come from a file. learner: sees requests, runs beside.
    Raises EldrError, see eldr.proxy.startup.
    """
    check_files(config)
    clock, metrics = MonotonicClock(), RouterMetrics(share.metrics if share else None)
    prefill, decode = _fleets(config, profiles.given, policies, metrics, clock, share)
    check_named_workers(decode.policy, config)
    signer = Signer(profiles.given, clock, learns=learner is not None)
    async with AsyncExitStack() as behind:
        upstream = Upstream(config)
        behind.push_async_callback(upstream.close)
        router = _router(behind, config, (prefill, decode), upstream, signer, metrics, clock, share, learner)
        must_fit = None if profiles.learned else profiles.given
        guard = ModelGuard(must_fit.info.model if must_fit else None)
        probe = CountsProbe(upstream, signer) if must_fit else None
        checker = HealthChecker((prefill, decode), upstream, guard, config, probe)
        membership = behind.enter_context(closing(Membership(checker, config.admin.drain_s)))
        reconciler = Reconciler(membership, metrics)
        found_by = [*_file_source(config, reload, reconciler), *sources(config)]
        await behind.enter_async_context(following(reconciler, found_by))
        try:
            await wait_for_workers(checker, config.wait_s)
        except EldrError as error:
            if share is None or not share.restarted:
                raise
            log.warning("starting all the same, beside the other processes: %s", error)
        await behind.enter_async_context(_background(checker.run()))
        profile = _profile_in_use(profiles, guard, signer, decode, policies)
        if learner is not None:
            folder = share.metrics if share else None
            live = Live(decode, signer, metrics, clock, profile, lambda: guard.model, folder)
            await behind.enter_async_context(_background(learner.run(live)))
        await _administered(behind, config, membership, share)
        yield App(router, upstream, (prefill, decode), membership, metrics, config)


def _profile_in_use(
    profiles: Profiles, guard: ModelGuard, signer: Signer, decode: Fleet, policies: Policies
) -> Profile | None:
    """What was learned before, if it is of the workers' model; else what was given, which then must fit."""
    given, learned = profiles
    if learned is None:
        return given
    if guard.fits(learned.info.model):
        signer.use(learned)
        decode.set_centroids(learned.centroids, one_each=False)
        _, decode.policy = policies(learned)
        return learned
    log.warning(
        "what was learned before is of %r, not of %r: it is not used", learned.info.model, guard.model
    )
    if given is not None:
        guard.expect(given.info.model)
    return given


def _fleets(
    config: Config,
    profile: Profile | None,
    policies: Policies,
    metrics: RouterMetrics,
    clock: Clock,
    share: Share | None,
) -> tuple[Fleet, Fleet]:
    """Prefill and decode workers, with the profile's centroids."""
    ledgers = share.ledgers if share else {}
    prefill, decode = (
        Fleet(
            *(role, workers, policy, metrics, clock, config.breaker, ledgers.get(role)),
            check_interval_s=config.health_interval_s,
        )
        for role, workers, policy in zip(
            ("prefill", "decode"), (config.prefill, config.decode), policies(profile), strict=True
        )
    )
    if profile is not None:
        changes = "decode" in discovered_roles(config) or config.adapt.save is not None
        decode.set_centroids(profile.centroids, one_each=not changes)
    return prefill, decode


def _router(
    behind: AsyncExitStack,
    config: Config,
    fleets: tuple[Fleet, Fleet],
    upstream: Upstream,
    signer: Signer,
    metrics: RouterMetrics,
    clock: Clock,
    share: Share | None,
    learner: Learner | None,
) -> Router:
    """The router, with the files and traces that it writes; `behind` closes these."""
    tracing = open_tracing(config.observe.otlp_endpoint) if config.observe.otlp_endpoint else Tracing()
    behind.push_async_callback(tracing.close)
    records = RecordWriter(config.records) if config.records else None
    if records is not None:
        behind.callback(records.close)
    decisions = _decision_log(config, share)
    if decisions is not None:
        behind.callback(decisions.close)
    limits, retry = _parts(config, share)
    gate = Gate(limits)
    metrics.queued.set_function(lambda: float(gate.waiting))
    metrics.body_bytes.set_function(lambda: float(gate.room.held_bytes))
    return Router(
        *fleets,
        upstream,
        signer,
        metrics,
        clock,
        label_header=config.label_header,
        budget=RetryBudget(retry, clock),
        gate=gate,
        records=records,
        decisions=decisions,
        tracing=tracing,
        learner=learner,
    )


def _parts(config: Config, share: Share | None) -> tuple[LimitConfig, RetryConfig]:
    """What one of several processes may take up: together they keep to the limits."""
    limits, retry = config.limits, config.retry
    if share is None:
        return limits, retry
    of = partial(part, row=share.row, processes=share.processes)
    bodies_bytes = max(of(limits.bodies_bytes), config.body_limit_bytes)  # or it could take no large one
    return (
        replace(limits, in_flight=of(limits.in_flight), queued=of(limits.queued), bodies_bytes=bodies_bytes),
        replace(retry, burst=of(retry.burst), least_per_s=retry.least_per_s / share.processes),
    )


async def _administered(
    behind: AsyncExitStack, config: Config, membership: Membership, share: Share | None
) -> None:
    """Begin the admin API, which the first of several processes answers and the others follow."""
    if share is None or config.admin.port is None:
        await behind.enter_async_context(admin_site(config.admin, membership))
        return
    changes = Changes(share.metrics)
    await changes.catch_up(membership)
    if share.row == 0:
        await behind.enter_async_context(admin_site(config.admin, membership, changes))
    else:
        await behind.enter_async_context(_background(changes.follow(membership)))


def _decision_log(config: Config, share: Share | None) -> DecisionLog | None:
    observe = config.observe
    if not observe.decision_log:
        return None
    path = Path(observe.decision_log)
    if share is not None:  # files that several processes rotate would lose lines
        path = path.with_stem(f"{path.stem}-{share.row}")
    return DecisionLog(str(path), observe.decision_log_bytes, observe.decision_log_files)


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
    task.add_done_callback(_tell_of_end)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _tell_of_end(task: asyncio.Task[None]) -> None:
    """Log why work that runs beside the router has ended before it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("work beside the router has ended", exc_info=error)
