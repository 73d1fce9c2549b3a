"""The generated parts of docs/tuning.md, from docs/bench/tuning.json alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eldr.bench.documents import replace_part
from eldr.paper.beyond.page import table
from eldr.paper.tuning.results import Run, Saved, known, rounds

BAD_STARTS = {
    "tau 2": "load alone (tau 2)",
    "tau 0": "locality alone (tau 0)",
}
"""Starts that are to be recovered from, in words."""


def write_page(saved: Saved, page: Path) -> None:
    """Put all generated parts into the page. ConfigError where a mark is missing."""
    parts = {
        "verdict": verdict(saved),
        "estimates": estimate_table(saved),
        "recovery": recovery(saved),
        "default": default_table(saved),
    }
    for name, text in parts.items():
        replace_part(page, name, text)


def verdict(saved: Saved) -> str:
    """What the loops say of each claim, in numbers."""
    studies = rounds(saved.runs)
    cpu_s = [one.cpu_s for one in studies]
    return "\n".join(
        [
            f"On {len(saved.titles())} cases, in {len(studies)} studies:",
            "",
            *_accuracy(saved),
            _recovered(saved),
            _kept(saved),
            f"- **a study** takes {np.median(cpu_s):.1f} s of one core in the median, "
            f"{max(cpu_s):.1f} s at most.",
        ]
    )


def _accuracy(saved: Saved) -> list[str]:
    estimates = known(saved.runs)
    points = np.array([one.off_points for one in estimates])
    jsq = 100 * np.abs([one.jsq_error for one in estimates])
    return [
        "- **the learned cost** foretells the mean TPOT of JSQ, which the window has not seen, with an error "
        f"of {np.median(jsq):.1f} % in the median and {jsq.max():.1f} % at most;",
        f"- **the saving** is off by {np.median(np.abs(points)):.1f} points in the median and "
        f"{np.abs(points).max():.1f} at most ({points.mean():+.1f} on average); the 95 % interval holds the "
        f"true one in {sum(one.holds for one in estimates)} of {len(estimates)} studies;",
    ]


def _recovered(saved: Saved) -> str:
    loops = [(run, start) for start in BAD_STARTS for run in saved.with_start(start)]
    finals = [run.change(start) for run, start in loops]
    tails = [run.change(start, "p99_ms") for run, start in loops]
    last_s = max(at_s for run, start in loops for at_s, _ in run.loops[start].changes)
    return (
        f"- **a bad start** is left by {last_s:.0f} s of traffic at the latest, and the final mean TPOT is "
        f"{np.mean(finals):+.1f} % on average against a router that ran the default all the time, "
        f"{max(finals):+.1f} % at the worst (p99 {max(tails):+.1f} %);"
    )


def _kept(saved: Saved) -> str:
    runs = sorted(saved.with_start("default"), key=lambda run: run.change("default"))
    best, worst = runs[0], runs[-1]
    mean = np.mean([run.change("default") for run in runs])
    return (
        f"- **from the default**, the final mean TPOT is {mean:+.2f} % on average against staying with it, "
        f"{worst.change('default'):+.1f} % at the worst ({worst.title}) and "
        f"{best.change('default'):+.1f} % at best ({best.title}), and p99 "
        f"{max(run.change('default', 'p99_ms') for run in runs):+.1f} % at the worst;"
    )


def estimate_table(saved: Saved) -> str:
    """Cost and saving, case by case, from windows of the default."""
    head = [
        "case",
        "evidence",
        "R2",
        "active expert: learned / true",
        "JSQ foretold",
        "saving: estimated",
        "true",
        "off, points",
        "in the interval",
    ]
    body = [_estimate_row(saved.of(title)) for title in saved.titles()]
    return table(head, [row for row in body if row])


def _estimate_row(runs: list[Run]) -> list[str]:
    estimates = known(runs)
    if not estimates:
        return []

    def mean(field: str, scale: float = 1.0) -> float:
        return scale * float(np.mean([getattr(one, field) for one in estimates]))

    points = [one.off_points for one in estimates]
    return [
        runs[0].title,
        runs[0].evidence,
        f"{mean('r2'):.2f}",
        f"{mean('active_ratio'):.2f}",
        f"{mean('jsq_error', 100):+.1f} %",
        f"{mean('saving', 100):.1f} %",
        f"{mean('true_saving', 100):.1f} %",
        f"{np.mean(points):+.1f} ({min(points):+.1f} to {max(points):+.1f})",
        f"{sum(one.holds for one in estimates)} of {len(estimates)}",
    ]


def recovery(saved: Saved) -> str:
    """From bad starts."""
    head = ["case", "every", "start", "before the first study", "changed", "final mean", "final p99"]
    body = [
        [
            run.title,
            f"{run.every_s:.0f} s",
            BAD_STARTS[start],
            f"{run.change_at_begin(start):+.1f} %",
            _changes(run, start),
            f"{run.change(start):+.1f} %",
            f"{run.change(start, 'p99_ms'):+.1f} %",
        ]
        for title in saved.titles()
        for run in saved.of(title)
        for start in BAD_STARTS
        if start in run.loops
    ]
    return table(head, body)


def default_table(saved: Saved) -> str:
    """From the default."""
    head = ["case", "changed", "final mean", "final p99", "p99 against JSQ's"]
    body = []
    for title in saved.titles():
        runs = [run for run in saved.of(title) if "default" in run.loops]
        body.append(
            [
                title,
                "; ".join(_changes(run, "default") for run in runs),
                _each([run.change("default") for run in runs]),
                _each([run.change("default", "p99_ms") for run in runs]),
                _each([100 * (run.loops["default"].final.p99_ms / run.jsq.p99_ms - 1) for run in runs]),
            ]
        )
    return table(head, body)


def _changes(run: Run, start: str) -> str:
    changes = run.loops[start].changes
    return ", ".join(f"at {at_s:.0f} s to `{choice}`" for at_s, choice in changes) or "never"


def _each(values: Sequence[float]) -> str:
    return "; ".join(f"{value:+.1f} %" for value in values)
