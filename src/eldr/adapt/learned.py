"""What a router has learned, put to use, and told to the other processes of one router."""

import math
import os
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from eldr.adapt.choice import Choice
from eldr.adapt.round import Answer
from eldr.files import replacing
from eldr.profile.artifact import Profile
from eldr.proxy.learner import Live
from eldr.proxy.shared_folder import hold

FILE = "learned.pickle"
"""In a folder that only this router's processes write to."""


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What a router routes by: centroid i of the profile for the worker owners[i], and the policy.

    profile: None while there is none; owners is then of no meaning. gauges: for the metrics, by the name in
    RouterMetrics.
    """

    profile: Profile | None
    owners: tuple[str, ...]
    policy: Choice
    gauges: dict[str, float] = field(default_factory=dict)

    def routes_as(self, other: "Learned") -> bool:
        """Are profile and policy the same?"""
        return self.profile is other.profile and self.policy == other.policy

    def sharing_profile(self, other: "Learned") -> "Learned":
        """Itself, with the profile object of the other where it is the same one, read again."""
        mine, its = self.profile, other.profile
        if mine is None or its is None or mine.info != its.info:
            return self
        return replace(self, profile=its) if np.array_equal(mine.centroids, its.centroids) else self

    def put_to_use(self, before: "Learned", live: Live, seed: int) -> None:
        """Change what differs from before, all at once: no request is decided between two parts of it."""
        for name, value in self.gauges.items():
            getattr(live.metrics, name).set(value)
        if self.profile is not None and self.profile is not before.profile:
            live.signer.use(self.profile)
            live.decode.reseat(self.profile.centroids, self.owners)
        if self.policy != before.policy:
            live.decode.policy = self.policy.create(seed)

    def tell(self, folder: Path) -> None:
        """Write it down for the other processes. Raises ConfigError and OSError."""
        if not folder.is_dir():
            hold(folder)  # as long as this process lives
        with replacing(folder / FILE) as file:
            pickle.dump(self, file, pickle.HIGHEST_PROTOCOL)


def told(folder: Path) -> Learned | None:
    """What another process wrote down last, if anything. Raises PermissionError for another user's file."""
    try:
        with (folder / FILE).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():  # reading a pickle runs what it says
                raise PermissionError(f"{file.name} belongs to another user")
            learned: Learned = pickle.load(file)
            return learned
    except FileNotFoundError:
        return None


def gauges_of(answer: Answer) -> dict[str, float]:
    """What the metrics tell of an answer, by the name in RouterMetrics; NaN for what is not known now."""
    gauges = {} if answer.drift is None else {"drift_p_value": answer.drift.p_value}
    if answer.study is None:
        return gauges
    names = ("saving", "saving_low", "saving_high", "saving_error")
    saving = answer.study.saving
    values = [None] * 4 if saving is None else [saving.ratio, saving.low, saving.high, saving.mean_error]
    return gauges | {
        name: math.nan if value is None else value for name, value in zip(names, values, strict=True)
    }
