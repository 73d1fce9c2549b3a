"""The generated parts of docs/learning.md, from docs/bench/drift.json alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eldr.bench.documents import replace_part
from eldr.paper.beyond.cases import JSQ
from eldr.paper.beyond.page import table
from eldr.paper.drift.cases import METRICS, Case
from eldr.paper.drift.results import Row, Saved

WORDS = {"p50_ms": "median", "mean_ms": "mean", "p99_ms": "p99"}
SHOWN = {"jump": ("before", "later"), "new": ("before", "later"), "none": ("later",)}
"""Event -> phases in the tables of TPOT; the table of refits has those just after the event."""


def write_page(saved: Saved, page: Path) -> None:
    """Put the generated parts into the page. ConfigError where a mark is missing."""
    for event in SHOWN:
        replace_part(page, event, tpot(saved, event))
    replace_part(page, "alarms", alarms(saved))
    replace_part(page, "refits", refits(saved))
    replace_part(page, "quiet", quiet(saved))
    replace_part(page, "false alarms", false_alarms(saved))


def tpot(saved: Saved, event: str) -> str:
    """TPOT against JSQ's in the same phase."""
    phases = SHOWN[event]
    head = ["requests", "policy", "centroids"]
    head += [f"{WORDS[metric]} {phase}" for phase in phases for metric in METRICS]
    rows = []
    for row in saved.rows:
        if row.case.event == event and row.case.policy != JSQ:
            jsq = saved.jsq(row)
            changes = [str(row.against(jsq, metric, phase)) for phase in phases for metric in METRICS]
            rows.append([*_named(row), *changes])
    return table(head, rows)


def alarms(saved: Saved) -> str:
    """Time from the event to what is found."""
    head = ["what happens", "requests", "policy", "alarm after, s", "new centroids after, s"]
    rows = []
    for event in ("jump", "new"):
        for row in saved.learning(event):
            found = [_seconds(row.until(what, saved.event_s)) for what in ("alarm", "moved")]
            rows.append([event, row.case.source, f"`{row.case.policy}`", *found])
    return table(head, rows)


def refits(saved: Saved) -> str:
    """New centroids against those that were kept, on the same requests."""
    head = ["what happens", "requests", "policy", "refits a run before", "after", "moved at one"]
    head += [f"{WORDS[metric]} {phase}" for phase in ("just after", "later") for metric in METRICS]
    rows = [
        [event, row.case.source, f"`{row.case.policy}`", *_refit_cells(saved, row)]
        for event in SHOWN
        for row in saved.learning(event)
        if row.case.centroids == "refitted"
    ]
    return table(head, rows)


def _refit_cells(saved: Saved, row: Row) -> list[str]:
    kept = saved.of(Case(row.case.source, row.case.event, row.case.policy, "kept"))
    number = [
        np.mean(
            [
                [one.moved is not None and (one.at_s > saved.event_s) == after for one in looks]
                for looks in row.looks
            ]
        )
        * len(row.looks[0])
        for after in (False, True)
    ]
    changes = [
        str(row.against(kept, metric, phase)) for phase in ("just after", "later") for metric in METRICS
    ]
    return [f"{number[0]:.1f}", f"{number[1]:.1f}", _share(_moved([row])), *changes]


def quiet(saved: Saved) -> str:
    """What is done where nothing changes."""
    head = [
        "requests",
        "policy",
        "centroids",
        "looks",
        "alarms",
        "refits a run, by 60 s",
        "later",
        "moved at one",
    ]
    rows = []
    for row in saved.learning("none"):
        looks = [one for run in row.looks for one in run]
        early = sum(one.moved is not None and one.at_s <= 60 for one in looks) / len(row.looks)
        late = sum(one.moved is not None and one.at_s > 60 for one in looks) / len(row.looks)
        alarms_ = sum(one.alarm for one in looks)
        cells = [str(len(looks)), str(alarms_), f"{early:.1f}", f"{late:.1f}", _share(_moved([row]))]
        rows.append([*_named(row), *cells])
    return table(head, rows)


def false_alarms(saved: Saved) -> str:
    """Shares of checks without drift beside what is stated."""
    head = ["requests", "users send", *(f"p < {level:g}" for level in saved.levels)]
    rows = [[one.source, one.users, *(f"{100 * share:.2g} %" for share in one.below)] for one in saved.alarms]
    return table(head, [["*stated*", "", *(f"{100 * level:.2g} %" for level in saved.levels)], *rows])


def _moved(rows: Sequence[Row]) -> list[float]:
    return [one.moved for row in rows for run in row.looks for one in run if one.moved is not None]


def _share(values: Sequence[float]) -> str:
    return f"{100 * np.mean(values):.0f} %" if values else "none"


def _seconds(values: Sequence[float | None]) -> str:
    """Median and range over the seeds, and how many have none."""
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    text = f"{np.median(known):.0f} ({min(known):.0f} to {max(known):.0f})"
    return (
        text if len(known) == len(values) else f"{text}, never in {len(values) - len(known)} of {len(values)}"
    )


def _named(row: Row) -> list[str]:
    return [row.case.source, f"`{row.case.policy}`", row.case.centroids]
