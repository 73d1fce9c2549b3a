"""The closed loop: simulated traffic whose window is studied every so often, and whose policy may change."""

import time
from typing import Any

import msgspec
import numpy as np

from eldr.adapt.choice import DEFAULT, JSQ, Choice
from eldr.adapt.study import Study, study
from eldr.adapt.tune import Tuner
from eldr.paper.beyond.cases import Case, requests_of
from eldr.paper.beyond.worlds import World, world_of
from eldr.paper.tuning.live import Live, run
from eldr.paper.tuning.results import Estimate, Loop, Phase, Round, Run
from eldr.sim import Records, Requests

LEAST_KEPT, MOST_KEPT, TURNS_KEPT = 2000, 4096, 12
"""The window keeps so many times the requests in flight, within these bounds; the router keeps the most."""

MOST_BETWEEN_S = 60.0
"""A study is made each time that the window is all new, and at least as often as this."""

BEGIN, FINAL, END = (0.3, 1.0), (3.2, 4.2), 4.5
"""Times between two studies. Requests that are decided then are the begin, once workers are filled and before
the first study, and the final phase, after the last study and before the workers run empty; traffic ends."""

STARTS: dict[str, Choice] = {
    "default": DEFAULT,
    "tau 2": Choice.of("locality_band", tau=2.0),
    "tau 0": Choice.of("locality_band", tau=0.0),
}
"""What a router begins with: the default, one that goes by load alone, and one that never does."""


def measured(
    *, source: str, workers: int, batch: int, noise: float, seed: int, starts: list[str], kept: str
) -> dict[str, Any]:
    """A Run: loops with some STARTS on the same requests, beside fixed runs.

    noise: see live.run. kept: see world_of.
    """
    case = Case(source, workers, batch)
    world = world_of(source, workers, seed, kept)
    requests, every_s = _requests(world, case, seed)
    fixed = {choice: run(world, requests, workers, choice).records for choice in (DEFAULT, JSQ)}
    begin_s, final_s = (_times(phase, every_s) for phase in (BEGIN, FINAL))
    loops = {
        start: _ClosedLoop(world, case, noise, fixed, STARTS[start], seed).run(requests, every_s)
        for start in starts
    }
    result = Run(
        source=source,
        workers=workers,
        batch=batch,
        noise=noise,
        seed=seed,
        evidence=world.evidence,
        rate=len(requests) / float(requests.arrival_s[-1]),
        every_s=every_s,
        default_begin=_phase(fixed[DEFAULT], begin_s),
        default=_phase(fixed[DEFAULT], final_s),
        jsq=_phase(fixed[JSQ], final_s),
        loops=loops,
    )
    return dict(msgspec.to_builtins(result))


def _kept(case: Case) -> int:
    return min(max(LEAST_KEPT, TURNS_KEPT * case.workers * case.batch), MOST_KEPT)


def _requests(world: World, case: Case, seed: int) -> tuple[Requests, float]:
    """The traffic, and the time between two studies."""
    few = requests_of(world, case.workers, case.batch, seed)
    rate = len(few) / float(few.arrival_s[-1])
    every_s = min(MOST_BETWEEN_S, _kept(case) / rate)
    return requests_of(world, case.workers, case.batch, seed, round(END * every_s * rate)), every_s


def _times(phase: tuple[float, float], every_s: float) -> tuple[float, float]:
    return phase[0] * every_s, phase[1] * every_s


class _ClosedLoop:
    """What the router does every so often. fixed: records of runs whose policy stays."""

    def __init__(
        self,
        world: World,
        case: Case,
        noise: float,
        fixed: dict[Choice, Records],
        start: Choice,
        seed: int,
    ) -> None:
        self._world, self._case, self._noise, self._fixed, self._seed = world, case, noise, fixed, seed
        self._tuner, self._since_s = Tuner(start), -np.inf
        self._changes: list[tuple[float, str]] = []
        self._rounds: list[Round] = []

    def run(self, requests: Requests, every_s: float) -> Loop:
        """Serve the requests."""
        begin_s, final_s = (_times(phase, every_s) for phase in (BEGIN, FINAL))
        self._last_s = final_s[0]
        live = run(
            self._world,
            requests,
            self._case.workers,
            self._tuner.current,
            look=self._look,
            every_s=every_s,
            noise=self._noise,
        )
        return Loop(
            begin=_phase(live.records, begin_s),
            final=_phase(live.records, final_s),
            changes=self._changes,
            choice=str(live.policy.choice),
            rounds=self._rounds,
        )

    def _look(self, live: Live, now_s: float) -> None:
        """Study the window, and change the policy if the tuner says so."""
        if now_s > self._last_s:
            return
        before, began_s = self._tuner.current, time.process_time()
        found = self._study(live)
        cpu_s = time.process_time() - began_s
        self._tuner, said = self._tuner.after(found.tried)
        estimate = self._estimate(found, before)
        self._rounds.append(Round(at_s=now_s, current=str(before), estimate=estimate, cpu_s=cpu_s, said=said))
        if self._tuner.current != before:
            live.policy.switch(self._tuner.current)
            self._since_s = now_s
            self._changes.append((now_s, str(self._tuner.current)))

    def _study(self, live: Live) -> Study:
        profile = self._world.profile
        return study(
            live.window(_kept(self._case)),
            profile.signature_transform(),
            profile.centroids,
            np.ones(self._case.workers, np.bool_),
            self._tuner.current,
            self._seed + len(self._rounds),
            since_s=self._since_s,
        )

    def _estimate(self, found: Study, current: Choice) -> Estimate | None:
        """What it found beside the truth, which fixed runs of the same requests tell."""
        if found.learned is None or found.saving is None or found.compared_s is None:
            return None
        jsq_s = _mean_s(self._fixed[JSQ], found.compared_s)
        fixed = self._fixed.get(current)
        return Estimate(
            r2=found.learned.r2,
            active_ratio=found.learned.cost.active_s / self._world.cost.active_s,
            replay_error=found.saving.mean_error,
            jsq_error=found.saving.jsq_s / jsq_s - 1,
            saving=found.saving.ratio,
            low=found.saving.low,
            high=found.saving.high,
            true_saving=None if fixed is None else 1 - _mean_s(fixed, found.compared_s) / jsq_s,
        )


def _mean_s(records: Records, between_s: tuple[float, float]) -> float:
    return _phase(records, between_s).mean_ms / 1e3


def _phase(records: Records, between_s: tuple[float, float]) -> Phase:
    inside = (records.decided_s >= between_s[0]) & (records.decided_s < between_s[1])
    tpot_ms = 1e3 * records.tpot_s[inside]
    return Phase(float(tpot_ms.mean()), float(np.percentile(tpot_ms, 99)))
