"""Fig. 2 from a measured report: a panel a model, a line a batch size."""

from pathlib import Path
from typing import Any

from eldr.bench.moe_layer import LayerRun, MoeLayerReport
from eldr.bench.plots import CYCLE, pyplot, save_figure


def plot(report: MoeLayerReport, path: Path) -> None:
    """Draw the report. ConfigError where matplotlib is missing."""
    plt = pyplot()
    count = len(report.runs)
    figure, panels = plt.subplots(1, count, figsize=(4.2 * count, 3.6), layout="constrained", squeeze=False)
    for axes, run in zip(panels[0], report.runs, strict=True):
        _panel(axes, run)
    panels[0][0].set_ylabel("time of one MoE layer (ms)")
    panels[0][0].legend(title="tokens", frameon=False, fontsize=9)
    figure.suptitle(report.device, fontsize=10)
    save_figure(figure, path)


def _panel(axes: Any, run: LayerRun) -> None:
    for color, tokens in zip(CYCLE, sorted({point.tokens for point in run.points}), strict=False):
        line = [(point.active, point.least_us / 1e3) for point in run.points if point.tokens == tokens]
        axes.plot(*zip(*line, strict=True), "o-", ms=3.5, lw=1.4, color=color, label=str(tokens))
    axes.set(xlabel="active experts", title=f"{run.model} ({run.dtype})")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
