"""The generated parts of docs/expert-parallelism.md and its plot, from docs/bench/expert_parallelism.json."""

from pathlib import Path

from eldr.bench.documents import replace_part
from eldr.files import replacing
from eldr.paper.beyond.cases import BAND, JSQ, SOFT
from eldr.paper.beyond.page import table
from eldr.paper.beyond.plot import COLORS
from eldr.paper.beyond.results import mean
from eldr.paper.parallel.cases import CANDIDATES, TRIED
from eldr.paper.parallel.results import Row, Saved
from eldr.paper.style import bar, panels, plotter

OURS = (BAND, SOFT)


def write_page(saved: Saved, page: Path) -> None:
    """Put the generated parts into the page. ConfigError where a mark is missing."""
    replace_part(page, "validity", validity(saved))
    replace_part(page, "settings", settings(saved))
    replace_part(page, "left", left(saved))
    replace_part(page, "candidates", candidates(saved))


def validity(saved: Saved) -> str:
    """Expected numbers against counted ones."""
    head = [
        "ranks",
        "redundant",
        "placement",
        "batch",
        "counted",
        "expected maximum",
        "maximum of expectations",
    ]
    return table(
        head,
        [
            [
                *(str(value) for value in (row.ranks, row.redundant, row.placement, row.batch)),
                f"{row.counted:.2f}",
                f"{row.error:+.1f} %",
                f"{row.error_of_means:+.1f} %",
            ]
            for row in saved.validity
        ],
    )


def settings(saved: Saved) -> str:
    """The table of all cases and settings."""
    head = ["case", "worker", "JSQ: median ms", "active experts", "batch"]
    head += [f"`{rule}`: {what}" for rule in OURS for what in ("median", "p99", "active", "left")]
    return table(head, [_cells(saved, row) for row in saved.rows])


def _cells(saved: Saved, row: Row) -> list[str]:
    cells = [row.case, row.setting.title]
    cells += [f"{row.mean(JSQ, metric):.1f}" for metric in ("p50_ms", "active", "batch")]
    for rule in OURS:
        cells += [str(row.change(rule, metric)) for metric in ("p50_ms", "p99_ms", "active")]
        cells.append(f"{100 * saved.left(row, rule):.0f} %")
    return cells


def left(saved: Saved) -> str:
    """What is left of the gain, in a sentence."""
    rows = [row for row in saved.rows if row.setting.where != "split"]
    parts = []
    for gpus in sorted({row.setting.gpus for row in rows}):
        own = [row for row in rows if row.setting.gpus == gpus]
        shares = [f"{100 * mean([saved.left(row, rule) for row in own]):.0f} % (`{rule}`)" for rule in OURS]
        parts.append(f"with EP {gpus} {' and '.join(shares)}")
    return f"Averaged over cases and placements, {', '.join(parts)} of the reduction of the median is left."


def candidates(saved: Saved) -> str:
    """What a rule gains that knows the ranks."""
    rules = (SOFT, *CANDIDATES)
    head = ["case", "worker", *(f"{rule}: {what}" for rule in rules for what in ("median", "p99"))]
    rows = [row for row in saved.rows if row.setting in TRIED]
    cells = [
        [
            row.case,
            row.setting.title,
            *(str(row.change(rule, metric)) for rule in rules for metric in ("p50_ms", "p99_ms")),
        ]
        for row in rows
    ]
    average = [
        f"**{mean([row.change(rule, metric).mean for row in rows]):+.1f} %**"
        for rule in rules
        for metric in ("p50_ms", "p99_ms")
    ]
    return table(head, [*cells, ["**average**", "", *average]])


def draw(saved: Saved, path: Path) -> None:
    """Write a PNG: the median's change against JSQ by setting. Whiskers are 95 % intervals."""
    plt = plotter()
    cases = list(dict.fromkeys(row.case for row in saved.rows))
    figure, axes = panels(plt, len(cases), width=3.9, height=3.6, sharey=True)
    for panel, case in zip(axes, cases, strict=True):
        rows = [row for row in saved.rows if row.case == case]
        for number, rule in enumerate(OURS):
            changes = [row.change(rule, "p50_ms") for row in rows]
            bar(
                panel,
                [place + 0.4 * number - 0.2 for place in range(len(rows))],
                [(change.mean, change.low, change.high) for change in changes],
                width=0.38,
                color=COLORS[rule],
                label=rule,
            )
        panel.set_xticks(range(len(rows)), [row.setting.title for row in rows], rotation=60, ha="right")
        panel.set(title=case)
    axes[0].set(ylabel="median TPOT, % against JSQ")
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=2, loc="outside lower center")
    with replacing(path) as file:
        figure.savefig(file, format="png")
    plt.close(figure)
