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

EVERY_S, TRAFFIC_S = 60.0, 330.0
"""Between two studies, and of traffic in all."""

BEGIN_S, FINAL_S = (20.0, 60.0), (250.0, 310.0)
"""Requests that are decided then are the begin, once the workers are filled and before the first study, and
the final phase, after the last study and before the workers run empty."""

LEAST_KEPT, TURNS_KEPT = 2000, 10
"""The window keeps so many requests, or so many times those in flight."""

STARTS: dict[str, Choice] = {
    "default": DEFAULT,
    "tau 2": Choice.of("locality_band", tau=2.0),
    "tau 0": Choice.of("locality_band", tau=0.0),
}
"""What a router begins with: the default, one that goes by load alone, and one that never does."""


def measured(
    *, source: str, workers: int, batch: int, seed: int, starts: list[str], kept: str
) -> dict[str, Any]:
    """A Run: loops with some STARTS on the same requests, beside fixed runs. kept: see world_of."""
    case = Case(source, workers, batch)
    world = world_of(source, workers, seed, kept)
    requests = _requests(world, case, seed)
    fixed = {choice: run(world, requests, workers, choice).records for choice in (DEFAULT, JSQ)}
    loops = {start: _ClosedLoop(world, case, fixed, STARTS[start], seed).run(requests) for start in starts}
    result = Run(
        source=source,
        workers=workers,
        batch=batch,
        seed=seed,
        evidence=world.evidence,
        rate=len(requests) / float(requests.arrival_s[-1]),
        default_begin=_phase(fixed[DEFAULT], BEGIN_S),
        default=_phase(fixed[DEFAULT], FINAL_S),
        jsq=_phase(fixed[JSQ], FINAL_S),
        loops=loops,
    )
    return dict(msgspec.to_builtins(result))


def _requests(world: World, case: Case, seed: int) -> Requests:
    few = requests_of(world, case.workers, case.batch, seed)
    number = round(len(few) * TRAFFIC_S / float(few.arrival_s[-1]))
    return requests_of(world, case.workers, case.batch, seed, number)


class _ClosedLoop:
    """What the router does every EVERY_S. fixed: records of runs whose policy stays."""

    def __init__(
        self, world: World, case: Case, fixed: dict[Choice, Records], start: Choice, seed: int
    ) -> None:
        self._world, self._case, self._fixed, self._seed = world, case, fixed, seed
        self._tuner, self._since_s = Tuner(start), -np.inf
        self._changes: list[tuple[float, str]] = []
        self._rounds: list[Round] = []

    def run(self, requests: Requests) -> Loop:
        """Serve the requests."""
        live = run(
            self._world, requests, self._case.workers, self._tuner.current, look=self._look, every_s=EVERY_S
        )
        return Loop(
            begin=_phase(live.records, BEGIN_S),
            final=_phase(live.records, FINAL_S),
            changes=self._changes,
            choice=str(live.policy.choice),
            rounds=self._rounds,
        )

    def _look(self, live: Live, now_s: float) -> None:
        """Study the window, and change the policy if the tuner says so."""
        if now_s > FINAL_S[0]:
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
        capacity = max(LEAST_KEPT, TURNS_KEPT * self._case.workers * self._case.batch)
        profile = self._world.profile
        return study(
            live.window(capacity),
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
            jsq_error=next(one.mean_s for one in found.tried if one.choice == JSQ) / jsq_s - 1,
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
