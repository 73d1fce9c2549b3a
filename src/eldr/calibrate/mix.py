"""Named workloads: benchmarks or languages in given shares, from a local folder if it has them, or the hub.

The folder holds tasks/NAME.jsonl and languages/CODE.jsonl, JSON lines {"prompt": str, "domain": str}.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from eldr.calibrate import hub
from eldr.calibrate.benchmarks import BENCHMARKS
from eldr.calibrate.prompts import Prompt, read_prompts
from eldr.errors import CalibrationError, ConfigError

DEFAULT_PROMPTS = 1000
"""As many as the paper calibrates on; fewer where the data hold fewer in the same shares."""

TASKS, LANGUAGES = "tasks", "languages"

WILDCHAT_SHARES = {
    "en": 0.476,
    "zh": 0.278,
    "ru": 0.092,
    "fr": 0.024,
    "pt": 0.021,
    "es": 0.018,
    "other": 0.092,
}
"""The paper's Fig. 5."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """prompts in a random order; source: where they come from, in words."""

    prompts: list[Prompt]
    source: str


def workload_names() -> tuple[str, ...]:
    """What `draw_workload` knows."""
    return (TASKS, LANGUAGES, *BENCHMARKS.names())


def data_folder() -> Path | None:
    """$ELDR_DATA, else ../shared/data beside the checkout that this code runs from; None where neither is
    there.
    """
    named = os.environ.get("ELDR_DATA")
    folder = Path(named) if named else Path(__file__).parents[4] / "shared" / "data"
    return folder if (folder / TASKS).is_dir() and (folder / LANGUAGES).is_dir() else None


def draw_workload(name: str, limit: int | None, data: Path | None, seed: int) -> Drawn:
    """Draw prompts of a named workload in its shares, by seed.

    name: "tasks" (the domains evenly, and evenly the benchmarks of each), "languages" (WildChat's) or one
    benchmark. limit: so many prompts; None for up to DEFAULT_PROMPTS. data: a folder to prefer to the hub.
    Raises ConfigError for an unknown name, CalibrationError where there are fewer prompts than `limit` needs.
    """
    shares = _shares(name)
    wanted = quotas(limit or DEFAULT_PROMPTS, shares)
    rng = np.random.default_rng(seed)
    pools, source = _pools(name, wanted, data, seed)
    most = largest_total({group: len(pool) for group, pool in pools.items()}, shares)
    if limit is not None and most < limit:
        raise CalibrationError(f"{source}: {name} has {most} prompts in its shares; ask for --limit {most}")
    parts = quotas(min(most, limit or DEFAULT_PROMPTS), shares)
    drawn = [
        pools[group][index]
        for group, number in parts.items()
        for index in rng.permutation(len(pools[group]))[:number]
    ]
    return Drawn([drawn[index] for index in rng.permutation(len(drawn))], source)


def quotas(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Split a total in proportion to the shares, whose sum may be any, by largest remainders."""
    whole = sum(shares.values())
    exact = {group: total * share / whole for group, share in shares.items()}
    parts = {group: int(value) for group, value in exact.items()}
    by_remainder = sorted(exact, key=lambda group: parts[group] - exact[group])
    for group in by_remainder[: total - sum(parts.values())]:
        parts[group] += 1
    return parts


def largest_total(available: Mapping[str, int], shares: Mapping[str, float]) -> int:
    """The largest total whose quotas are all available."""
    whole = sum(shares.values())
    total = int(min((available[group] + 1) * whole / share for group, share in shares.items()))
    while any(available[group] < part for group, part in quotas(total, shares).items()):
        total -= 1
    return total


def _shares(name: str) -> dict[str, float]:
    if name == LANGUAGES:
        return WILDCHAT_SHARES
    if name != TASKS:
        if name not in BENCHMARKS.names():
            raise ConfigError(f"unknown benchmark {name!r}; choose from {', '.join(workload_names())}")
        return {name: 1.0}
    places: dict[str, list[str]] = {}
    for benchmark in BENCHMARKS.names():
        places.setdefault(BENCHMARKS[benchmark].domain, []).append(benchmark)
    in_turn = chain.from_iterable(zip_longest(*places.values()))  # so that remainders go to all domains
    return {one: 1 / len(places[BENCHMARKS[one].domain]) for one in in_turn if one}


def _pools(
    name: str, wanted: Mapping[str, int], data: Path | None, seed: int
) -> tuple[dict[str, list[Prompt]], str]:
    kind = LANGUAGES if name == LANGUAGES else TASKS
    local = {} if data is None else {group: _local_files(data / kind, kind, group) for group in wanted}
    if local and all(local.values()):
        pools = {group: _distinct(files) for group, files in local.items()}
        return pools, f"the {kind} folder of {data}"
    if kind == LANGUAGES:
        return hub.wildchat_prompts(wanted, seed), hub.WILDCHAT
    pools = {group: hub.benchmark_prompts(group, number, seed) for group, number in wanted.items()}
    return pools, "the hub"


def _local_files(folder: Path, kind: str, group: str) -> list[Path]:
    """The files of a group; "other" is every language that is none of the rest."""
    if kind == LANGUAGES and group == hub.OTHER:
        return [path for path in sorted(folder.glob("*.jsonl")) if path.stem not in WILDCHAT_SHARES]
    path = folder / f"{group}.jsonl"
    return [path] if path.is_file() else []


def _distinct(files: list[Path]) -> list[Prompt]:
    return list({prompt.text: prompt for path in files for prompt in read_prompts(path).prompts}.values())
