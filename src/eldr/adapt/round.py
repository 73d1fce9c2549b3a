"""One look at what the router saw: drift, better centroids, a better policy. Pure; runs in a child."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from msgspec import structs

from eldr import __version__
from eldr.adapt.drift import Drift, drift, settled
from eldr.adapt.refit import ROWS_A_WORKER, Refit, refit
from eldr.adapt.seats import Seats
from eldr.adapt.study import Study, study
from eldr.adapt.tune import Tuner
from eldr.adapt.window import Seen, Window
from eldr.profile.artifact import Profile, ProfileInfo, routing_fingerprint
from eldr.signature import SignatureTransform

FIRST_TRANSFORMATION = "counts"
"""Of a profile that is made of live prompts. Choosing one by rho takes decode counts, which only calibration
has; on recorded models plain counts were mostly the best or near it (docs/reproduction.md, Fig. 7)."""

FIRST_ROWS = 256
"""Requests with counts, at least, and ROWS_A_WORKER a worker, that a first profile is made of."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What the router saw, and how it routes now.

    sample: requests with counts of the whole window of time; latest: the last ones, without gaps.
    asked_s: now. since_s: when the last drift was found; more is only looked for after that. model: its name.
    tau: for a first profile. tuner: with the policy that has routed since policy_since_s. most_rows: requests
    that centroids may need: the sample may be no larger. refits, tunes: what may be changed.
    """

    sample: Sequence[Seen]
    latest: Sequence[Seen]
    seats: Seats
    profile: Profile | None
    asked_s: float
    since_s: float
    model: str
    top_k: int
    tau: float
    tuner: Tuner
    policy_since_s: float
    most_rows: int
    refits: bool = True
    tunes: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """profile: to be used from now on, row i for the i-th worker of the question; None to change nothing.

    why: in words, for the log. refit, drift: what was found, None where that was not looked for. stale_s:
    what was decided before says nothing of now, since there was drift; None where nothing is stale.
    study: of the policy, and what the tuner makes of it; None where the profile is new or there is none.
    settling: there are enough requests for a first profile once those decided with the latest have ended.
    """

    profile: Profile | None
    why: str
    stale_s: float | None = None
    refit: Refit | None = None
    drift: Drift | None = None
    study: Study | None = None
    tuner: Tuner | None = None
    settling: bool = False

    @property
    def result(self) -> str:
        """For metrics: were centroids changed, or looked at and kept, or was there nothing to look at?"""
        return "used" if self.profile is not None else "kept" if self.refit is not None else "skipped"


def answer(question: Question) -> Answer:
    """Look at the sample for drift and for better centroids, and where these stay, at the policy."""
    profile = question.profile
    if profile is None and not question.refits:
        return Answer(None, "refitting is off, and there is no profile")
    if profile is None:
        window = _window(question, question.sample)
        return first_profile(
            window, question.model, question.tau, question.seed, question.most_rows, question.asked_s
        )
    if question.refits:
        window = _window(question, question.sample)
        found = refitted(
            *(window, question.seats, profile, question.since_s, question.seed),
            *(question.most_rows, question.asked_s),
        )
        if found.profile is not None:
            return found
    else:
        found = Answer(None, "refitting is off")
    studied = _studied(question, _window(question, question.latest), profile)
    tuner, said = question.tuner.after(studied.tried) if question.tunes else (question.tuner, "tuning is off")
    return replace(found, study=studied, tuner=tuner, why=f"{found.why}; {studied.reason or said}")


def _window(question: Question, seen: Sequence[Seen]) -> Window:
    shape = next((one.counts.shape for one in seen if one.counts is not None), (1, 1))
    return Window.of(seen, question.seats.worker_ids, shape, question.top_k)


def _studied(question: Question, window: Window, profile: Profile) -> Study:
    assert question.seats.centroids is not None
    return study(
        window,
        profile.signature_transform(),
        question.seats.centroids,
        question.seats.has_centroid,
        question.tuner.current,
        question.seed,
        since_s=question.policy_since_s,
    )


def first_profile(
    window: Window,
    model: str,
    tau: float,
    seed: int,
    most_rows: float = math.inf,
    now_s: float | None = None,
) -> Answer:
    """Make a profile for the window's workers, once there is enough. model, tau, most_rows: see Question."""
    workers = len(window.worker_ids)
    needed = _needed(workers, FIRST_ROWS, most_rows)
    counts = window.counts[settled(window.decided_s, window.finish_s, now_s) & window.counted]
    if len(counts) < needed:
        later = int(window.counted.sum()) - len(counts)
        why = f"{len(counts)} of {needed} requests with counts for a first profile"
        if later:
            why += f", and {later} of a time whose long ones may not have ended"
        return Answer(None, why, settling=len(counts) + later >= needed)
    transform = SignatureTransform(FIRST_TRANSFORMATION).fit(counts)
    signatures = transform.transform_many(counts)
    nobody = np.zeros((workers, signatures.shape[1]), np.float32)
    found = refit(signatures, nobody, np.zeros(workers, np.bool_), nobody[:0], seed)
    layers, experts = window.counts.shape[1:]
    info = ProfileInfo(
        model=model,
        layers=layers,
        experts=experts,
        top_k=window.top_k,
        fingerprint=routing_fingerprint(layers, experts, window.top_k),
        transformation=FIRST_TRANSFORMATION,
        tau=tau,
        rho=None,
        calibration_requests=len(counts),
        seed=seed,
        created_at=_now(),
        eldr_version=__version__,
    )
    profile = Profile(
        transform.weights_, transform.kept_layers_, found.centroids, found.sizes.astype(np.int64), info
    )
    return Answer(profile, f"first profile, of {len(counts)} live requests", refit=found)


def _needed(workers: int, least: int, most_rows: float) -> int:
    """Requests to make centroids of: at least two a worker, so that a half of them is one each."""
    return max(2 * workers, int(min(max(least, ROWS_A_WORKER * workers), most_rows)))


def refitted(
    window: Window,
    seats: Seats,
    profile: Profile,
    since_s: float,
    seed: int,
    most_rows: float = math.inf,
    now_s: float | None = None,
) -> Answer:
    """Test for drift since a time; refit with what is new where that is better or the pool has changed.

    After drift, with the requests since then, as soon as these are enough.
    """
    assert seats.centroids is not None
    assert seats.left is not None
    signatures = profile.signature_transform().transform_many(window.counts)
    signed = signatures.any(axis=1)
    signatures, decided_s, finish_s = signatures[signed], window.decided_s[signed], window.finish_s[signed]
    seen = drift(signatures, decided_s, finish_s, since_s, seed)
    stale_s = seen.since_s if seen.alarm else None
    fresh_s = -np.inf if stale_s is None else stale_s
    signatures = signatures[settled(decided_s, finish_s, now_s) & (decided_s >= fresh_s)]
    needed = _needed(len(seats.worker_ids), 0, most_rows)
    if len(signatures) < needed:
        return Answer(None, f"{len(signatures)} of {needed} requests for new centroids", stale_s, None, seen)
    found = refit(signatures, seats.centroids, seats.has_centroid, seats.left, seed)
    if not found.worth_it:
        return Answer(None, f"centroids stay: {found.reason}", stale_s, found, seen)
    info = _of_now(profile.info, len(signatures))
    refitted = replace(
        profile, centroids=found.centroids, cluster_sizes=found.sizes.astype(np.int64), info=info
    )
    why = f"new centroids: {found.reason}; {found.moved:.0%} of requests move"
    return Answer(refitted, why, stale_s, found, seen)


def _of_now(info: ProfileInfo, requests: int) -> ProfileInfo:
    """The same facts for centroids of that many live requests."""
    return structs.replace(info, calibration_requests=requests, created_at=_now(), eldr_version=__version__)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
