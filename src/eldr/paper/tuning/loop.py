"""The closed loop: simulated traffic whose window is studied every so often, and whose policy may change."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.adapt.choice import DEFAULT, JSQ, Choice
from eldr.adapt.study import Study, study
from eldr.adapt.tune import Tuner
from eldr.paper.beyond.cases import Case, requests_of
from eldr.paper.beyond.worlds import World, world_of
from eldr.paper.tuning.live import Live, run
from eldr.sim import Records, Requests

EVERY_S, TRAFFIC_S = 60.0, 330.0
"""Between two studies, and of traffic in all."""

FINAL_S = (250.0, 310.0)
"""Requests that are decided then are the final phase: after the last study, before workers run empty."""

LEAST_KEPT, TURNS_KEPT = 2000, 10
"""The window keeps so many requests, or so many times those in flight."""

STARTS: dict[str, Choice] = {
    "default": DEFAULT,
    "tau 2": Choice.of("locality_band", tau=2.0),
    "tau 0": Choice.of("locality_band", tau=0.0),
}
"""What a router begins with: the default, one that goes by load alone, and one that never does."""


@dataclass(frozen=True, slots=True)
class Round:
    """A study, and what is true of the requests that it compared.

    active_ratio: learned over true cost of an active expert. jsq_error: by what share replayed JSQ is above a
    true run of JSQ. saving, low, high, true_saving: against JSQ, as shares. cpu_s: of the study. None where
    the window had too little.
    """

    at_s: float
    current: str
    r2: float | None
    active_ratio: float | None
    replay_error: float | None
    jsq_error: float | None
    saving: float | None
    low: float | None
    high: float | None
    true_saving: float | None
    cpu_s: float
    said: str


def measured(
    *, source: str, workers: int, batch: int, seed: int, starts: list[str], kept: str
) -> dict[str, Any]:
    """All loops of a case, one a start, on the same requests, beside fixed runs of the default and JSQ.

    TPOT in ms of the final phase: mean_ms, p99_ms.
    """
    world = world_of(source, workers, seed, kept)
    requests = _requests(world, Case(source, workers, batch), seed)
    fixed = {choice: run(world, requests, workers, choice) for choice in (DEFAULT, JSQ)}
    loops = {
        name: _loop(world, requests, Case(source, workers, batch), STARTS[name], fixed, seed)
        for name in starts
    }
    return {
        "evidence": world.evidence,
        "rate": len(requests) / float(requests.arrival_s[-1]),
        "default": _final(fixed[DEFAULT].records),
        "jsq": _final(fixed[JSQ].records),
        "loops": loops,
    }


def _requests(world: World, case: Case, seed: int) -> Requests:
    few = requests_of(world, case.workers, case.batch, seed)
    number = round(len(few) * TRAFFIC_S / float(few.arrival_s[-1]))
    return requests_of(world, case.workers, case.batch, seed, number)


def _loop(
    world: World, requests: Requests, case: Case, start: Choice, fixed: dict[Choice, Live], seed: int
) -> dict[str, Any]:
    loop = _Loop(world, case, fixed, start, seed)
    live = run(world, requests, case.workers, start, loop.look, EVERY_S)
    return {
        **_final(live.records),
        "changes": loop.changes,
        "choice": str(live.policy.choice),
        "rounds": [asdict(one) for one in loop.rounds],
    }


class _Loop:
    """What the router does every minute."""

    def __init__(self, world: World, case: Case, fixed: dict[Choice, Live], start: Choice, seed: int) -> None:
        self._world, self._case, self._fixed, self._seed = world, case, fixed, seed
        self._tuner, self._since_s = Tuner(start), -np.inf
        self._runs: list[tuple[float, Choice]] = [(0.0, start)]
        self.changes: list[tuple[float, str]] = []
        self.rounds: list[Round] = []

    def look(self, live: Live, now_s: float) -> None:
        """Study the window, and change the policy if the tuner says so."""
        if now_s > FINAL_S[0]:
            return
        capacity = max(LEAST_KEPT, TURNS_KEPT * self._case.workers * self._case.batch)
        window, profile, before = live.window(capacity), self._world.profile, self._tuner.current
        began_s = time.process_time()
        found = study(
            window,
            profile.signature_transform(),
            profile.centroids,
            np.ones(self._case.workers, np.bool_),
            before,
            self._seed + len(self.rounds),
            since_s=self._since_s,
        )
        cpu_s = time.process_time() - began_s
        self._tuner, said = self._tuner.after(found.tried)
        self.rounds.append(self._round(found, now_s, before, cpu_s, said))
        if self._tuner.current != before:
            live.policy.switch(self._tuner.current)
            self._since_s = now_s
            self.changes.append((now_s, str(self._tuner.current)))

    def _round(self, found: Study, now_s: float, current: Choice, cpu_s: float, said: str) -> Round:
        learned, saved = found.learned, found.saving
        jsq_s, true_saving = self._truth(found, current)
        replayed_s = next((one.mean_s for one in found.tried if one.choice == JSQ), None)
        true_us = 1e6 * self._world.cost.active_s
        return Round(
            at_s=now_s,
            current=str(current),
            r2=learned.r2 if learned else None,
            active_ratio=1e6 * learned.cost.active_s / true_us if learned else None,
            replay_error=saved.mean_error if saved else None,
            jsq_error=replayed_s / jsq_s - 1 if replayed_s and jsq_s else None,
            saving=saved.ratio if saved else None,
            low=saved.low if saved else None,
            high=saved.high if saved else None,
            true_saving=true_saving,
            cpu_s=cpu_s,
            said=said,
        )

    def _truth(self, found: Study, current: Choice) -> tuple[float | None, float | None]:
        """Of the requests that were compared: true mean TPOT under JSQ, and the true saving of the default.

        The saving is only known for the choice that there is a fixed run of.
        """
        if found.compared_s is None:
            return None, None
        jsq_s = _mean(self._fixed[JSQ].records, found.compared_s)
        if current not in self._fixed:
            return jsq_s, None
        return jsq_s, 1 - _mean(self._fixed[current].records, found.compared_s) / jsq_s


def _mean(records: Records, between_s: tuple[float, float]) -> float:
    """Mean TPOT in s of those decided in a span of time."""
    return float(records.tpot_s[_decided(records, between_s)].mean())


def _decided(records: Records, between_s: tuple[float, float]) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = (records.decided_s >= between_s[0]) & (records.decided_s < between_s[1])
    return inside


def _final(records: Records) -> dict[str, float]:
    tpot_ms = 1e3 * records.tpot_s[_decided(records, FINAL_S)]
    return {"mean_ms": float(tpot_ms.mean()), "p99_ms": float(np.percentile(tpot_ms, 99))}
