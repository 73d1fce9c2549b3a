"""Learning beside a running router: what it saw goes to a child process, what that found is put to use."""

import asyncio
import logging
import math
from dataclasses import replace
from pathlib import Path

from eldr.adapt.child import ask, children_cpu_s
from eldr.adapt.choice import Choice
from eldr.adapt.learned import Learned, gauges_of, told
from eldr.adapt.refit import ROWS_A_WORKER
from eldr.adapt.round import Answer, Question
from eldr.adapt.seats import Seats
from eldr.adapt.tune import Tuner
from eldr.adapt.watch import PoolWatch
from eldr.adapt.window import Recorder, Sampler, Seen
from eldr.config import Config
from eldr.errors import ConfigError, ProfileError
from eldr.metrics.records import RequestRecord
from eldr.policy import needs_profile, options_by_profile
from eldr.profile.artifact import Profile
from eldr.proxy.learner import Live
from eldr.settings_adapt import AdaptConfig
from eldr.types import ExpertCounts

log = logging.getLogger(__name__)

KEPT = 2048
"""Requests that stand for the whole window of time, at most; more where there are many workers."""

ROOM_FOR_FITS = 4
"""Times the requests that centroids are made of, to be kept: the sample is halved when it is full."""

DEFAULT_TAU = 0.1
"""Band width of a first profile, where the policy has none."""

LATEST = 4096
"""Requests without gaps, at most: a study needs some turns of all batches."""

ROOM_BYTES = 64 << 20
"""For the counts of the latter, which bounds both; most models have room for all."""

ANOTHER_MODEL = 100
"""Requests in a row with counts of another shape, after which learning begins anew with these."""

SAID_EVERY_S = 600.0
"""How often the log says what was looked at, where nothing was changed."""

POLL_S = 0.5

SETTLE_S = 5.0
"""After a change of the pool, for others that come with it."""

AFTER_ALARM_S = 10.0
"""Until the next look where what is asked has changed, and too little of it was seen to make centroids of."""

LONGEST_S = 600.0
"""A child that takes longer is stopped."""

LEAST_NEW = 32
"""Requests since the last look without which there is nothing new to see, where there is a profile."""


def learning_for(config: Config) -> "Learning | None":
    """What learns for a router of these settings; nothing where its policy asks for no signatures."""
    adapt, policy = config.adapt, config.policy
    may_have_profile = config.profile or adapt.save
    if not needs_profile(policy.name) or not (adapt.refit or (adapt.tune and may_have_profile)):
        return None
    choice = Choice.of(policy.name, **policy.options)
    return Learning(adapt, choice, tau=policy.options.get("tau", DEFAULT_TAU), seed=config.seed)


class Learning:
    """A learner (eldr.proxy.learner) that keeps profile and policy up to date, or makes the first profile.

    policy: that the router begins with. tau: band width of a first profile. Whatever goes wrong here is
    logged and counted, and the router goes on as it was.
    """

    def __init__(self, config: AdaptConfig, policy: Choice, *, tau: float, seed: int) -> None:
        self._config, self._tau, self.seed = config, tau, seed
        self._sample, self._latest = Sampler(KEPT, config.window_s), Recorder(LATEST)
        self._tuner = Tuner(policy)
        self._now = Learned(None, (), policy)
        self._unsaved: Profile | None = None
        self._since_s = self._said_s = -math.inf
        self._policy_since_s = 0.0
        self._shape: tuple[int, ...] = ()
        self._new = self._others = 0
        self._settling = False

    def saw(self, record: RequestRecord, counts: ExpertCounts | None) -> None:
        """Keep a request, unless its counts are of another model."""
        if counts is not None and not self._is_same_model(counts):
            counts = None
        self._new += counts is not None
        seen = Seen.of(record, counts)
        self._sample.add(seen)
        self._latest.add(seen)

    def missed(self) -> None:
        """Requests were not seen: what is to be without gaps begins anew."""
        self._latest.forget()

    def _is_same_model(self, counts: ExpertCounts) -> bool:
        """Are counts of the shape of those before? Begin anew where for long none was."""
        shape = (*counts.counts.shape, counts.top_k)
        if shape == self._shape:
            self._others = 0
            return True
        self._others += 1
        if self._shape and self._others < ANOTHER_MODEL:
            return False
        if self._shape:
            log.warning("expert counts are %s now, and were %s: learning begins anew", shape, self._shape)
        self._begin_with(shape)
        return True

    def _begin_with(self, shape: tuple[int, ...]) -> None:
        """Learn from counts [L, E] and top-k of these numbers, from nothing."""
        self._shape, self._others = shape, 0
        self._sample = Sampler(min(KEPT, self._room), self._config.window_s)
        self._latest = Recorder(min(LATEST, self._room))

    @property
    def _room(self) -> int:
        """Requests whose counts there is room for."""
        return ROOM_BYTES // (2 * self._shape[0] * self._shape[1])

    def begin(self, live: Live) -> Learned:
        """What the router routes by at its start, or was told by the process whose place this one takes."""
        policy, profile = self._now.policy, live.profile
        if profile is not None:
            options = options_by_profile(policy.name, dict(policy.options), profile.info.tau)
            policy = Choice.of(policy.name, **options)
        first = Learned(profile, live.decode.pool.view().worker_ids, policy)
        try:
            if live.folder is None or (learned := told(live.folder)) is None:
                return first
            learned.put_to_use(first, live, self.seed)
        except Exception:  # whatever it is, learning must begin
            live.metrics.refits.labels("failed").inc()
            log.exception("what was learned cannot be used; this process begins without it")
            return first
        return learned

    async def run(self, live: Live) -> None:
        """Look at what came, at most every interval_s and for no more than a share of one core, for ever."""
        watch = PoolWatch(live.decode, live.clock, self._config.lost_s)
        self._now = self.begin(live)
        if self._now.profile is not None:
            self._begin_with(self._now.profile.counts_shape)
        self._tuner = Tuner(self._now.policy)
        self._policy_since_s = live.clock.now_s()
        next_s, looked_for = self._policy_since_s + self._config.interval_s, watch.seats().worker_ids
        while True:
            await asyncio.sleep(POLL_S)
            seats, now_s = watch.seats(), live.clock.now_s()
            moved = seats.worker_ids != looked_for and watch.calm_s >= SETTLE_S
            least_new = LEAST_NEW if self._profile is not None else 1
            nothing_new = self._new < least_new and not self._settling
            if (now_s < next_s and not moved) or nothing_new or not seats.worker_ids:
                continue
            self._new, looked_for = 0, seats.worker_ids
            next_s = now_s + await self._look(live, seats)

    async def _look(self, live: Live, seats: Seats) -> float:
        """Ask the child, and do what it says. Returns after how many seconds to look again."""
        asked_s, before_s, interval_s = live.clock.now_s(), children_cpu_s(), self._config.interval_s
        capacity = max(KEPT, ROOM_FOR_FITS * ROWS_A_WORKER * len(seats.worker_ids))
        self._sample.hold(min(capacity, self._room))
        try:
            async with asyncio.timeout(LONGEST_S):
                answer = await ask(self._question(live, seats))
            if answer.profile is not None and answer.profile.counts_shape != self._shape:
                raise ProfileError(f"expert counts are {self._shape} now, and were others when it was begun")
            self._use(answer, seats, live, asked_s)
            async with asyncio.timeout(LONGEST_S):
                await self._keep(live)
            if answer.profile is None and answer.drift is not None and answer.drift.alarm:
                interval_s = min(interval_s, AFTER_ALARM_S)
        except Exception:  # whatever it is, it must not stop the router
            live.metrics.refits.labels("failed").inc()
            log.exception("learning failed; the router routes as before")
        cpu_s = children_cpu_s() - before_s
        live.metrics.learning_cpu_s.inc(cpu_s)
        return max(interval_s, cpu_s / self._config.share)

    async def _keep(self, live: Live) -> None:
        """Write down what was learned, for the other processes and for the next router."""
        if self._unsaved is not None and self._config.save:
            try:
                await asyncio.to_thread(self._unsaved.save, Path(self._config.save))
                self._unsaved = None
            except ConfigError as error:
                log.warning("the new profile is in use, but not saved, which is tried again: %s", error)
        if live.folder is not None:
            try:
                await asyncio.to_thread(self._now.tell, live.folder)
            except (ConfigError, OSError) as error:
                log.warning(
                    "the other processes cannot be told what is in use, which is tried again: %s", error
                )

    @property
    def _profile(self) -> Profile | None:
        """The one of now, if it is of the model that requests are answered by."""
        now = self._now.profile
        return now if now is not None and now.counts_shape == self._shape else None

    def _question(self, live: Live, seats: Seats) -> Question:
        return Question(
            sample=self._sample.seen(),
            latest=self._latest.seen(),
            seats=seats,
            profile=self._profile,
            asked_s=live.clock.now_s(),
            since_s=self._since_s,
            model=live.model(),
            top_k=self._shape[2],
            tau=self._tau,
            tuner=self._tuner,
            policy_since_s=self._policy_since_s,
            refits=self._config.refit,
            tunes=self._config.tune,
            most_rows=self._sample.capacity // ROOM_FOR_FITS,
            seed=self.seed,
        )

    def _use(self, answer: Answer, seats: Seats, live: Live, asked_s: float) -> None:
        """Do what was found, and tell of it."""
        metrics, before = live.metrics, self._now
        after = replace(
            before, gauges=before.gauges | {"learned_from": len(self._sample)} | gauges_of(answer)
        )
        if answer.drift is not None and answer.drift.alarm:
            metrics.drift_alarms.inc()
            log.warning("what is asked has changed: %s", answer.drift)
            self._since_s = asked_s
        if answer.stale_s is not None:
            self._sample.forget(answer.stale_s)
        if answer.profile is not None:
            after = replace(after, profile=answer.profile, owners=seats.worker_ids)
            self._unsaved = answer.profile
        self._tuner, self._settling = answer.tuner or self._tuner, answer.settling
        if self._tuner.current != before.policy:
            metrics.policy_changes.labels(self._tuner.current.name).inc()
            after, self._policy_since_s = replace(after, policy=self._tuner.current), live.clock.now_s()
        metrics.refits.labels(answer.result).inc()
        self._say(answer, asked_s, at_once=after.profile is None or not after.routes_as(before))
        after.put_to_use(before, live, self.seed)
        self._now = after

    def _say(self, answer: Answer, now_s: float, *, at_once: bool) -> None:
        """Log what was found and done; else, now and then, that nothing was."""
        if at_once or now_s - self._said_s >= SAID_EVERY_S:
            self._said_s = now_s
            study = "" if answer.study is None else f"; {answer.study}"
            log.info("%s%s", answer.why, study)
