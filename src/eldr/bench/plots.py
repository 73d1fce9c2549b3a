"""The plots of a comparison, from saved results only. Needs matplotlib (the extra "plot")."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.bench.results import BASELINES, PolicyRun, Row, rows
from eldr.bench.signature_map import SignatureMap
from eldr.errors import ConfigError
from eldr.files import replacing

OURS, DEFAULT_POLICY = "#d1495b", "#009E73"
GREYS = ("#22303c", "#5b7083", "#8fa1b1", "#b9c4ce", "#7a8b6f", "#a9b79b")
CYCLE = (
    "#1b6ca8",
    "#e08e0b",
    "#2a9d8f",
    "#9b5de5",
    "#d1495b",
    "#6c757d",
    "#8ac926",
    "#00b4d8",
    "#bc6c25",
    "#ff7aa2",
)
DPI = 150


def plot_all(
    runs: Sequence[PolicyRun], space: SignatureMap, folder: Path, *, times: bool = True
) -> list[Path]:
    """Write every plot into the folder and return the files. ConfigError where matplotlib is missing.

    times: see eldr.bench.report.write_report.
    """
    plt = pyplot()
    table = rows(runs)
    makers: dict[str, Callable[[], Any]] = {
        "active_experts.png": lambda: active_over_time(plt, runs),
        "policies.png": lambda: policy_bars(plt, table, times=times),
        "signatures.png": lambda: signature_map(plt, space),
        "placement.png": lambda: placement(plt, runs),
    }
    paths = []
    for name, make in makers.items():
        paths.append(folder / name)
        save_figure(make(), paths[-1])
    return paths


def active_over_time(plt: Any, runs: Sequence[PolicyRun], window_s: float = 2.0) -> Any:
    """Active experts a decode step and layer, all workers together, over the first repeat of each policy."""
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for run in _first_repeats(runs):
        times, means = rolling_active(run, window_s)
        style = {"lw": 2.4, "zorder": 3} if run.policy not in BASELINES else {"lw": 1.4}
        axes.plot(times, means, color=policy_color(run.policy), label=run.policy, **style)
    axes.set(xlabel="time since the first arrival (s)", ylabel="active experts a step and layer")
    axes.set_title("Distinct experts that a decode step reads", loc="left", fontweight="bold")
    axes.legend(frameon=False, ncols=6, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes.set_ylim(bottom=0)
    _tidy(axes)
    return figure


def rolling_active(
    run: PolicyRun, window_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Moments, and the mean active experts of the steps within half a window of each; none without a step."""
    at = np.array([step.at_s for step in run.log])
    active = np.array([step.active for step in run.log])
    moments = np.arange(0.0, at.max() + 0.25, 0.25)
    near = np.abs(at[None, :] - moments[:, None]) <= window_s / 2
    number = near.sum(axis=1)
    return moments[number > 0], (near @ active)[number > 0] / number[number > 0]


def policy_bars(plt: Any, table: Sequence[Row], *, times: bool = True) -> Any:
    """Active experts of each policy, with its mean batch, and its median TPOT; dots are repeats."""
    figure, panels = plt.subplots(
        1, 1 + times, figsize=(9 if times else 5.4, 3.6), layout="constrained", squeeze=False
    )
    active, *tpot = panels[0]
    _bars(active, table, [r.active_experts for r in table], [r.active_experts_by_repeat for r in table])
    active.set_yticklabels([f"{entry.policy}\nbatch {entry.mean_batch:.1f}" for entry in table])
    active.set_title("Active experts a step and layer", loc="left", fontweight="bold")
    for axes in tpot:
        _bars(axes, table, [r.tpot_p50_ms for r in table], [r.tpot_p50_ms_by_repeat for r in table])
        axes.set_title("Time per output token, median (ms)", loc="left", fontweight="bold")
    return figure


def _bars(axes: Any, table: Sequence[Row], values: list[float], repeats: list[list[float]]) -> None:
    names = [entry.policy for entry in table]
    places = np.arange(len(table))
    axes.barh(places, values, color=[policy_color(name) for name in names], height=0.66)
    for place, value, dots in zip(places, values, repeats, strict=True):
        axes.text(value, place, f"  {value:.1f}", va="center", fontsize=10)
        if len(dots) > 1:
            axes.plot(dots, [place] * len(dots), "o", ms=4, mfc="white", mec="black", mew=0.8)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.15)
    _tidy(axes)


def signature_map(plt: Any, space: SignatureMap) -> Any:
    """Signatures in the plane that shows most of their spread, with the centroid of each decode worker."""
    figure, axes = plt.subplots(figsize=(6.6, 5), layout="constrained")
    for color, label in zip(_cycle(), dict.fromkeys(space.labels), strict=False):
        chosen = [place for place, own in enumerate(space.labels) if own == label]
        axes.scatter(
            *space.points[chosen].T, s=22, color=color, alpha=0.75, lw=0, label=label or "unlabelled"
        )
    axes.scatter(*space.centroids.T, marker="*", s=340, color="black", ec="white", lw=1.2, zorder=4)
    for worker, (x, y) in zip(space.workers, space.centroids, strict=True):
        axes.annotate(worker, (x, y), (9, 7), textcoords="offset points", fontweight="bold", zorder=5)
    axes.set(xlabel=f"1st component ({space.explained[0]:.0%} of variance)")
    axes.set(ylabel=f"2nd component ({space.explained[1]:.0%})")
    axes.set_title("Signatures by domain; stars: centroids of the workers", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _tidy(axes)
    return figure


def placement(plt: Any, runs: Sequence[PolicyRun]) -> Any:
    """Which worker decoded the requests of which domain, a heat map a policy."""
    first = _first_repeats(runs)
    labels = sorted({reply.record.label or "" for run in first for reply in run.replies})
    figure, panels = plt.subplots(
        1, len(first), figsize=(1.2 + 1.9 * len(first), 3.8), sharey=True, layout="constrained", squeeze=False
    )
    for axes, run in zip(panels[0], first, strict=True):
        share = placement_shares(run, labels)
        image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(run.steps)), list(run.steps))
        axes.set_title(
            run.policy, fontsize=10, color="black" if run.policy in BASELINES else policy_color(run.policy)
        )
        axes.tick_params(length=0)
    panels[0][0].set_yticks(range(len(labels)), labels)
    figure.colorbar(image, ax=panels[0], label="share of the domain's requests", shrink=0.9)
    return figure


def placement_shares(run: PolicyRun, labels: Sequence[str]) -> Any:
    """[labels, workers]: the share of a label's requests that each worker decoded; rows sum to 1."""
    workers = list(run.steps)
    counts = np.zeros((len(labels), len(workers)))
    for reply in run.replies:
        counts[labels.index(reply.record.label or ""), workers.index(reply.record.decode_worker or "")] += 1
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def policy_color(policy: str) -> str:
    """Greys for the baselines, so that the eye goes to the others."""
    if policy in BASELINES:
        return GREYS[BASELINES.index(policy)]
    return DEFAULT_POLICY if policy == "soft_locality" else OURS


def _first_repeats(runs: Sequence[PolicyRun]) -> list[PolicyRun]:
    return list({run.policy: run for run in reversed(runs)}.values())[::-1]


def _cycle() -> Sequence[str]:
    return CYCLE * 10


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format that the name ends in, and close it. ConfigError where it cannot be
    written."""
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=DPI, bbox_inches="tight", facecolor="white")
    pyplot().close(figure)


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files. ConfigError where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError('plots need matplotlib; install it with: pip install ".[plot]"') from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
