"""The plot of the study: TPOT over time against JSQ's, where what is asked changes."""

from pathlib import Path

import numpy as np

from eldr.files import replacing
from eldr.paper.beyond.cases import JSQ
from eldr.paper.beyond.plot import COLORS
from eldr.paper.drift.cases import BATCHES, EVENTS
from eldr.paper.drift.results import Saved
from eldr.paper.style import plotter

STYLES = {"kept": "-", "refitted": "--", "cold": ":"}
MARGIN_S = 20.0
"""Before the first and after the last time of the plot, workers fill or drain."""


def draw(saved: Saved, path: Path) -> None:
    """Write a PNG: median TPOT by arrival, mean over seeds, above JSQ's on the same requests."""
    plt = plotter()
    sources = list(BATCHES)
    figure, axes = plt.subplots(len(sources), len(EVENTS), figsize=(11, 8), squeeze=False, sharex=True)
    for row in saved.rows:
        if row.case.policy == JSQ:
            continue
        panel = axes[sources.index(row.case.source)][EVENTS.index(row.case.event)]
        change = 100 * (np.array(row.times_ms) / np.array(saved.jsq(row).times_ms) - 1).mean(axis=0)
        times_s = (np.arange(len(change)) + 0.5) * saved.bin_s
        panel.plot(
            times_s,
            change,
            STYLES[row.case.centroids],
            color=COLORS[row.case.policy],
            label=f"{row.case.policy}, {row.case.centroids}",
            lw=1.3,
        )
    for source, line in zip(sources, axes, strict=True):
        for event, panel in zip(EVENTS, line, strict=True):
            last_s = saved.bin_s * len(saved.rows[0].times_ms[0])
            panel.axvline(saved.event_s, color="black", lw=0.6, ls="-" if event != "none" else ":")
            panel.axhline(0, color="black", lw=0.6)
            panel.set(title=f"{source}: {event}", xlabel="arrival, s", ylabel="median TPOT above JSQ's, %")
            panel.set_xlim(MARGIN_S, last_s - MARGIN_S)
    figure.legend(*axes[0][-1].get_legend_handles_labels(), ncols=6, loc="outside lower center", fontsize=8)
    with replacing(path) as file:
        figure.savefig(file, format="png")
    plt.close(figure)
