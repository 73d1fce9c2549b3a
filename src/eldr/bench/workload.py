"""Mixed-domain prompts for the demo and the benchmarks: one half to calibrate on, the other to serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eldr.calibrate.mix import data_folder as data_folder
from eldr.calibrate.prompts import Prompt, read_prompts
from eldr.embedded import prompts_path
from eldr.errors import CalibrationError

DOMAINS = ("code", "math", "medical", "law", "en", "zh", "ru", "fr", "es", "de")
"""The domains of the embedded model, as the folders `tasks` and `languages` of a data folder name them."""

MAX_PROMPT_BYTES = 480
"""Longer prompts are cut: the embedded model was trained on 256 tokens, and prefill shares the cores with
decode.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Two disjoint halves with the same number of prompts a domain, each in a random order. source: for the
    report.
    """

    calibration: list[Prompt]
    evaluation: list[Prompt]
    source: str


def load_workload(folder: Path | None, requests: int, seed: int = 0) -> Workload:
    """`requests` prompts for each half: from a folder of prompt files, else from the data folder, else
    shipped ones.

    CalibrationError where a domain has too few prompts.
    """
    if folder is not None:
        return split(read_prompts(folder).prompts, requests, seed, str(folder))
    if (data := data_folder()) is not None:
        found = [*read_prompts(data / "tasks").prompts, *read_prompts(data / "languages").prompts]
        known = [prompt for prompt in found if prompt.label in DOMAINS]
        return split(known, requests, seed, "public benchmarks and user prompts (tasks, languages)")
    return split(read_prompts(prompts_path()).prompts, requests, seed, "prompts that the project ships")


def split(prompts: Sequence[Prompt], requests: int, seed: int, source: str) -> Workload:
    """Cut the prompts, draw equally many of each label for either half, and shuffle."""
    rng = np.random.default_rng(seed)
    labels = sorted({prompt.label for prompt in prompts})
    halves: tuple[list[Prompt], list[Prompt]] = ([], [])
    for place, label in enumerate(labels):
        share = requests // len(labels) + (place < requests % len(labels))
        distinct = list({cut(p.text): p for p in prompts if p.label == label}.items())
        if len(distinct) < 2 * share:
            raise CalibrationError(
                f"{source}: {len(distinct)} prompts of {label!r}, {2 * share} needed; ask for fewer requests"
            )
        drawn = [distinct[index] for index in rng.permutation(len(distinct))[: 2 * share]]
        chosen = [Prompt(text, label, prompt.origin) for text, prompt in drawn]
        halves[0].extend(chosen[:share])
        halves[1].extend(chosen[share:])
    first, second = ([half[index] for index in rng.permutation(len(half))] for half in halves)
    return Workload(first, second, source)


def cut(text: str, max_bytes: int = MAX_PROMPT_BYTES) -> str:
    """The beginning of a text, up to `max_bytes` of UTF-8, without a broken last character."""
    return text.encode()[:max_bytes].decode(errors="ignore").rstrip()
