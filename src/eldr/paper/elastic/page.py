"""The generated parts of docs/elastic.md and its plot, from docs/bench/elastic.json alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eldr.bench.documents import replace_part
from eldr.files import replacing
from eldr.paper.beyond.cases import JSQ
from eldr.paper.beyond.page import table
from eldr.paper.beyond.plot import COLORS
from eldr.paper.beyond.results import mean
from eldr.paper.elastic.cases import BACK_S, CHANGE_S, PHASES, SOURCES, Case
from eldr.paper.elastic.results import Row, Saved
from eldr.paper.style import plotter

STYLES = {"kept": "-", "refitted": "--"}
LATER = ("at", "during", "after")


def write_page(saved: Saved, page: Path) -> None:
    """Put the generated parts into the page. ConfigError where a mark is missing."""
    replace_part(page, "fail", phases(saved, "fail"))
    replace_part(page, "fail cost", fail_cost(saved))
    replace_part(page, "join", phases(saved, "join"))
    replace_part(page, "join cost", join_cost(saved))
    replace_part(page, "refit", refitted(saved))


def phases(saved: Saved, event: str) -> str:
    """TPOT before, and by how much it is above that later."""
    head = ["requests", "policy", "centroids"]
    for name in ("median", "p99"):
        head += [f"{name} before, ms", *(f"{phase}" for phase in LATER)]
    rows = []
    for row in _rows(saved, event):
        cells = _named(row)
        for metric in ("p50_ms", "p99_ms"):
            cells.append(f"{mean(getattr(row, metric)['before']):.2f}")
            cells += [str(row.change(metric, phase)) for phase in LATER]
        rows.append(cells)
    return table(head, rows)


def fail_cost(saved: Saved) -> str:
    """Requests that a failure and the return cost or move."""
    head = ["requests", "policy", "centroids", "cut off", "run again", "refused", "moved at the failure"]
    rows = [
        [
            *_named(row),
            *(f"{mean(values):.1f}" for values in (row.broken, row.again, row.refused)),
            *_moved(row, 2),
        ]
        for row in _rows(saved, "fail")
    ]
    return table([*head, "moved at the return"], rows)


def join_cost(saved: Saved) -> str:
    """What a new worker gets, and what moves."""
    head = ["requests", "policy", "centroids", "its requests over the mean", "moved"]
    return table(
        head, [[*_named(row), f"{mean(row.joined):.2f}", *_moved(row, 1)] for row in _rows(saved, "join")]
    )


def refitted(saved: Saved) -> str:
    """New centroids against those that were kept, while the pool is another one."""
    head = ["requests", "what happens", "policy", "median", "p99"]
    rows = []
    for row in saved.rows:
        if row.case.centroids == "refitted":
            kept = saved.of(Case(row.case.source, row.case.event, row.case.policy))
            changes = (row.against(kept, metric, "during") for metric in ("p50_ms", "p99_ms"))
            rows.append([row.case.source, row.case.event, f"`{row.case.policy}`", *map(str, changes)])
    return table(head, rows)


def _rows(saved: Saved, event: str) -> list[Row]:
    return [row for row in saved.rows if row.case.event == event]


def _named(row: Row) -> list[str]:
    centroids = "" if row.case.policy == JSQ else row.case.centroids
    return [row.case.source, f"`{row.case.policy}`", centroids]


def _moved(row: Row, changes: int) -> Sequence[str]:
    if row.case.policy == JSQ:
        return [""] * changes
    return [f"{100 * mean([run[change] for run in row.moved]):.0f} %" for change in range(changes)]


def draw(saved: Saved, path: Path) -> None:
    """Write a PNG: median and p99 over time, mean over seeds, of a worker that fails and one that joins."""
    plt = plotter()
    events = ("fail", "join")
    figure, axes = plt.subplots(len(SOURCES), 2 * len(events), figsize=(15, 6), squeeze=False)
    for row in saved.rows:
        column = 2 * events.index(row.case.event)
        values = np.mean(row.times_ms, axis=0)
        times = (np.arange(len(values)) + 0.5) * saved.bin_s
        name = (
            row.case.policy
            if row.case.policy == JSQ
            else f"{row.case.policy}, centroids {row.case.centroids}"
        )
        for number in range(2):
            panel = axes[SOURCES.index(row.case.source)][column + number]
            panel.plot(
                times,
                values[:, number],
                STYLES[row.case.centroids],
                color=COLORS[row.case.policy],
                label=name,
                lw=1.3,
            )
    for line, source in zip(axes, SOURCES, strict=True):
        for column, panel in enumerate(line):
            _dress(panel, source, events[column // 2], ("median", "p99")[column % 2])
    figure.legend(*axes[0][0].get_legend_handles_labels(), ncols=5, loc="outside lower center", fontsize=8)
    with replacing(path) as file:
        figure.savefig(file, format="png")
    plt.close(figure)


def _dress(panel: Any, source: str, event: str, metric: str) -> None:
    for at_s in (CHANGE_S, BACK_S) if event == "fail" else (CHANGE_S,):
        panel.axvline(at_s, color="black", lw=0.6)
    last_s = PHASES["after"][1]
    panel.set(title=f"{event}: {metric}", xlabel="arrival, s", ylabel="TPOT, ms", xlim=(20, last_s))
    panel.text(0.98, 0.96, source, transform=panel.transAxes, ha="right", va="top", fontsize=7)
