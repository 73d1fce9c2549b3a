"""Where the requests of `eldr simulate` come from: a source of expert choices, split to fit and to serve."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eldr.errors import ConfigError
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet
from eldr.profile.fit import fit_profile
from eldr.sim.requests import Column, Kinds, kinds_of, kinds_of_traces
from eldr.traces import ExpertTraces, embedded, presets, recorded, synthetic

SOURCES = ("synthetic", "embedded", "gpt-oss-20b", "deepseek-v2-lite")
MADE_UP = 1000
"""Synthetic requests to fit to, and as many others to serve."""


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """What is served, and how it is routed.

    evidence: "trace" for recorded choices of a real model, "model" for made-up ones.
    prompt_tokens, output_tokens: int64 [P] of the kinds as recorded; None where the source has only choices.
    """

    kinds: Kinds
    profile: Profile
    evidence: str
    source: str
    prompt_tokens: Column | None
    output_tokens: Column | None


def from_calibration(path: Path, workers: int, profile: Path | None, seed: int) -> Scenario:
    """Requests that `eldr calibrate` recorded."""
    whole = CalibrationSet.load(path)
    whole = whole.rows(np.flatnonzero(whole.decode_counts.any(axis=(1, 2))))
    fitted, served = _halves(len(whole), profile, seed)
    used = _profile(whole.rows(fitted), workers, profile, seed)
    rows = whole.rows(served)
    return Scenario(
        kinds_of(rows, used),
        used,
        "trace",
        f"{len(whole)} recorded requests of {whole.model}",
        rows.prompt_tokens.astype(np.int64),
        rows.output_tokens.astype(np.int64),
    )


def from_source(
    source: str, model: str, workload: str, workers: int, profile: Path | None, seed: int, *, exact: bool
) -> Scenario:
    """Requests of a named source. model: the shape of synthetic ones. exact: recorded ids, token by token."""
    if source == "synthetic":
        moe = presets.preset(model.lower(), workload)
        fitted, served = (synthetic.generate(moe, MADE_UP, requests_seed=part) for part in (0, 1))
        used = _profile(fitted.calibration_set(), workers, profile, seed)
        return Scenario(kinds_of_traces(served, used, exact=exact), used, "model", served.source, None, None)
    whole = _recorded(source)
    rows, rest = _halves(len(whole), profile, seed)
    used = _profile(whole.rows(rows).calibration_set(), workers, profile, seed)
    served = whole.rows(rest)
    assert served.ids is not None
    return Scenario(
        kinds_of_traces(served, used, exact=exact),
        used,
        "trace",
        whole.source,
        served.prompt_tokens.astype(np.int64),
        served.ids.tokens(),
    )


def _recorded(source: str) -> ExpertTraces:
    match source:
        case "embedded":
            return embedded.embedded()
        case "gpt-oss-20b":
            return recorded.gpt_oss_20b()
        case "deepseek-v2-lite":
            return recorded.deepseek_v2_lite()
    raise ConfigError(f"unknown source {source!r}; choose from {', '.join(SOURCES)}")


def _halves(count: int, profile: Path | None, seed: int) -> tuple[Column, Column]:
    """Which requests to fit to, and which to serve: all, where a profile is there already."""
    order = np.random.default_rng(seed).permutation(count)
    return (order, order) if profile is not None else (order[: count // 2], order[count // 2 :])


def _profile(calibration: CalibrationSet, workers: int, profile: Path | None, seed: int) -> Profile:
    if profile is None:
        return fit_profile(calibration, workers, seed=seed)[0]
    loaded = Profile.load(profile)
    loaded.check_fits(calibration.layers, calibration.experts, calibration.top_k)
    return loaded
