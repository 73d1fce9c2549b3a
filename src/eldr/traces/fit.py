"""Fits the synthetic MoE to what is known: `python -m eldr.traces.fit`.

It writes presets.json and docs/synthetic.md.

The scales of one workload are found by least squares over the targets (`eldr.traces.targets`), on every sixth
layer of Qwen3-30B-A3B's shape and one draw. What they achieve is then measured on other layers and draws.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.progress import track
from scipy.optimize import least_squares

from eldr.files import replacing
from eldr.program import run
from eldr.traces import fit_page, targets
from eldr.traces.base import ExpertTraces
from eldr.traces.presets import FITTED, SHAPES, make
from eldr.traces.recorded import QwenCounts, deepseek_v2_lite, qwen3_30b
from eldr.traces.statistics import by_label, layer_cosines, shares
from eldr.traces.synthetic import Scales, generate
from eldr.traces.targets import Target

REQUESTS = 1600
PROMPT_TOKENS = 300
"""About what the public benchmarks' prompts have (docs/traces.md)."""

FIT_LAYERS = np.arange(3, 48, 6)
SEEDS = (1, 2)
"""Draws that are measured of the fitted shape; of the others, which only take its scales, the first."""

START = Scales(popularity=1.2, domain=1.4, topic=0.6, request=0.6, domain_phase=0.5, phase=0.5)

WILDCHAT = {"en": 47.6, "zh": 27.8, "ru": 9.2, "fr": 2.4, "pt": 2.1, "es": 1.8, "de": 4.6, "ja": 4.6}
"""Shares of the languages in the paper's Fig. 5; its other 9.2 % are German and Japanese here, in halves."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Job:
    """One workload to fit: its fixed parameters, its targets, and which scales are free."""

    name: str
    given: dict[str, Any]
    targets: list[Target]
    free: tuple[str, ...]


def tasks_job(counts: QwenCounts) -> Job:
    """Four unrelated domains of three topics each; layers differ as those of DeepSeek-V2-Lite do on ESFT."""
    esft = deepseek_v2_lite()
    given = {
        "domains": {"code": 1, "math": 1, "medical": 1, "law": 1},
        "similarity": None,
        "topics": 3,
        "shared_topics": False,
        "depth": depth_profile(by_label(shares(esft.prefill), esft.label)),
    }
    return Job("tasks", given, targets.tasks(counts), tuple(asdict(START)))


def languages_job(counts: QwenCounts, topic: float) -> Job:
    """Languages as similar as Qwen3-30B-A3B's; the same eight topics in each, of the scale `topic`."""
    names, measured = list(counts.languages), np.stack(list(counts.languages.values()))
    similarity = with_unmeasured(names, layer_cosines(measured))
    given = {
        "domains": {name: WILDCHAT.get(name, 0) for name in [*names, "ru", "pt"]},
        "similarity": np.round(similarity, 4).tolist(),
        "topics": 8,
        "shared_topics": True,
        "depth": depth_profile(measured),
        "scales": {"topic": topic},
    }
    free = tuple(name for name in asdict(START) if name != "topic")
    return Job("languages", given, targets.languages(counts), free)


def depth_profile(domains: Matrix) -> list[float]:
    """How much the domains' activations [D, L, E] differ in each layer: factors with a mean square of 1."""
    pairs = np.triu_indices(len(domains), 1)
    apart = np.array(
        [1 - layer_cosines(domains[:, [layer]])[pairs].mean() for layer in range(domains.shape[1])]
    )
    return [round(float(factor), 3) for factor in np.sqrt(apart / apart.mean())]


def with_unmeasured(names: list[str], cosines: Matrix) -> Matrix:
    """Correlations of the languages' offsets from their cosines: 0 for the least similar pair.

    Russian and Portuguese were not measured. Russian is put as near to German, Spanish and French as English
    is to them, and as far from the rest as they are; Portuguese at Spanish, as near to it as French is.
    """
    lowest = cosines.min()
    near = (cosines - lowest) / (1 - lowest)
    place = {name: row for row, name in enumerate(names)}
    european = [place[name] for name in ("de", "es", "fr")]
    russian = near[european].mean(axis=0)
    russian[european] = near[place["en"], european].mean()
    portuguese = near[place["es"]].copy()
    portuguese[place["es"]] = near[place["es"], place["fr"]]
    whole = np.block(
        [
            [near, russian[:, None], portuguese[:, None]],
            [russian, 1.0, russian[place["es"]]],
            [portuguese, 0.0, 1.0],
        ]
    )
    whole[-1, -2] = whole[-2, -1]
    return nearest_correlation(whole)


def nearest_correlation(matrix: Matrix) -> Matrix:
    """The matrix without negative eigenvalues, and with ones on its diagonal again."""
    values, vectors = np.linalg.eigh(matrix)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    scale = np.sqrt(np.diag(positive))
    correlation: Matrix = positive / np.outer(scale, scale)
    return correlation


def fit(job: Job, evaluations: int) -> Scales:
    """The scales that come nearest to the targets, in at most so many steps."""

    def residuals(logs: Matrix) -> Matrix:
        traces = draw(job, scales_of(job, logs), 0, FIT_LAYERS)
        return np.array([target.residual(target.measure(traces)) for target in job.targets])

    start = np.log([asdict(START)[name] for name in job.free])
    found = least_squares(
        residuals,
        start,
        diff_step=0.05,
        ftol=0.02,
        x_scale=0.3,
        bounds=(np.log(0.02), np.log(4.0)),
        max_nfev=evaluations,
    )
    return scales_of(job, found.x)


def scales_of(job: Job, logs: Matrix) -> Scales:
    """Logarithms of the free scales, with the fixed ones."""
    free = dict(zip(job.free, np.exp(logs).round(4).tolist(), strict=True))
    return Scales(**{**job.given.get("scales", {}), **free})


def draw(
    job: Job, scales: Scales, seed: int, layers: npt.NDArray[np.int64] | None = None, model: str = FITTED
) -> ExpertTraces:
    """Requests with as many of each domain, on some or all layers."""
    even = dict.fromkeys(job.given["domains"], 1)
    moe = make(model, {**job.given, "domains": even, "scales": asdict(scales)})
    return generate(moe, REQUESTS, prompt_tokens=PROMPT_TOKENS, layers=layers, seed=seed)


def achieved(job: Job, scales: Scales, model: str) -> list[list[float]]:
    """[targets, draws]: what every third layer of the models has."""
    seeds = SEEDS if model == FITTED else SEEDS[:1]
    layers = np.arange(1, SHAPES[model][0], 3)
    drawn = (draw(job, scales, seed, layers, model) for seed in track(seeds, f"{job.name}: {model}"))
    by_draw = [[target.measure(traces) for target in job.targets] for traces in drawn]
    return [list(values) for values in zip(*by_draw, strict=True)]


@click.command()
@click.option("--presets", type=click.Path(path_type=Path), default=Path(__file__).with_name("presets.json"))
@click.option("--page", type=click.Path(path_type=Path), default=Path("docs/synthetic.md"), show_default=True)
@click.option(
    "--evaluations", type=click.IntRange(1), default=12, show_default=True, help="Steps of the fit."
)
@click.option("--fit/--page-only", "fit_again", default=True, help="Or only measure the scales as they are.")
def main(presets: Path, page: Path, evaluations: int, fit_again: bool) -> None:
    """Fit both workloads, and write the parameters and the page."""
    counts = qwen3_30b()
    first = tasks_job(counts)
    if fit_again:
        found = {first.name: fit(first, evaluations)}
        second = languages_job(counts, found["tasks"].topic)
        found[second.name] = fit(second, evaluations)
        kept = {job.name: {**job.given, "scales": asdict(found[job.name])} for job in (first, second)}
        with replacing(presets) as file:
            file.write((json.dumps({"workloads": kept}, indent=1) + "\n").encode())
    _write_page(page, counts, json.loads(presets.read_text("utf-8"))["workloads"])


def _write_page(page: Path, counts: QwenCounts, kept: dict[str, Any]) -> None:
    """Measure what the kept scales achieve, and write it."""
    scales = {name: Scales(**given["scales"]) for name, given in kept.items()}
    jobs = [tasks_job(counts), languages_job(counts, scales["tasks"].topic)]
    tables = [
        (job.name, job.targets, {model: achieved(job, scales[job.name], model) for model in SHAPES})
        for job in jobs
    ]
    some = draw(jobs[1], scales["languages"], SEEDS[0], np.arange(1, SHAPES[FITTED][0], 3))
    with replacing(page) as file:
        text = fit_page.page(kept, tables, fit_page.Cosines.compare(counts, some))
        file.write(text.encode())


if __name__ == "__main__":
    run(main)
