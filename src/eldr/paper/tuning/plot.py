"""The plot of the loops: estimated and true savings, and TPOT from bad starts."""

from pathlib import Path
from typing import Any

import numpy as np

from eldr.files import replacing
from eldr.paper.style import CYCLE, MARKERS, panels, plotter
from eldr.paper.tuning.page import BAD_STARTS
from eldr.paper.tuning.results import Saved, known


def draw(saved: Saved, path: Path) -> None:
    """Write a PNG."""
    plt = plotter()
    figure, (left, right) = panels(plt, 2, width=4.4, height=4.6)
    _savings(left, saved)
    _starts(right, saved)
    figure.legend(*left.get_legend_handles_labels(), ncols=4, fontsize=6, loc="outside lower center")
    with replacing(path) as file:
        figure.savefig(file, format="png")
    plt.close(figure)


def _savings(panel: Any, saved: Saved) -> None:
    most = 0.0
    for number, title in enumerate(saved.titles()):
        estimates = known(saved.of(title))
        true, estimated, low, high = (
            100 * np.array([getattr(one, field) for one in estimates])
            for field in ("true_saving", "saving", "low", "high")
        )
        panel.errorbar(
            true,
            estimated,
            yerr=[estimated - low, high - estimated],
            fmt=MARKERS[(number + number // len(CYCLE)) % len(MARKERS)],
            color=CYCLE[number % len(CYCLE)],
            ms=3.5,
            lw=0.6,
            label=title,
        )
        most = max([most, *true, *high])
    panel.plot([0, most], [0, most], color="black", lw=0.6)
    panel.set(title="saving against JSQ", xlabel="true, %", ylabel="estimated, %")


def _starts(panel: Any, saved: Saved) -> None:
    """Bars: how much slower than the default a start is at first; diamonds: in the end."""
    for number, (start, words) in enumerate(BAD_STARTS.items()):
        runs = list(saved.with_start(start))
        places = [row + 0.4 * number - 0.2 for row in range(len(runs))]
        begin = [run.change_at_begin(start) for run in runs]
        final = [run.change(start) for run in runs]
        panel.barh(places, begin, 0.36, color=CYCLE[number], label=f"{words}, at first")
        panel.plot(final, places, "D", color="black", ms=3, label="" if number else "final phase")
        panel.set_yticks(range(len(runs)), [run.title for run in runs], fontsize=6)
    panel.invert_yaxis()
    panel.axvline(0, color="black", lw=0.6)
    panel.set(title="TPOT from bad starts", xlabel="% above the default")
    panel.legend(fontsize=6, loc="upper right")
