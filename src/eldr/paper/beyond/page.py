"""The generated parts of docs/policies.md, from docs/bench/beyond.json alone."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from eldr.bench.documents import replace_part
from eldr.paper.beyond.cases import BAND, CANDIDATES, ORACLES, SOFT
from eldr.paper.beyond.results import GOAL, Row, Saved, mean

WHY = {
    "unscaled, fixed centroids, 0.6": "where cosines lie close together, load decides alone; where they do "
    "not, load counts too little",
    "fixed centroids": "what a worker holds is not what the fit gave it: requests that overflowed to it are "
    "forgotten, so the next ones overflow to everywhere",
    "bounded load, 1.25": "nobody avoids the limit until it is reached, and then requests go anywhere",
    "expected union, lasting": "no better, and needs clusters' decode rates and step costs in the router",
    "load weight 0.5": "distance and excess load alone: more locality, more tail",
    "load weight 0.7": "the same; the rule of ADR 13",
    "load weight 1.0": "the same: less locality, less tail",
    "without stays": "workers where many short requests pass are as full as the others, so many are slow",
    "without crowds": "one domain's burst fills one worker",
    "tighter crowds": "the tail is better still, the median pays for it",
    "long stays hold more": "the best median and mean; long requests are the tail",
    "tokens left for a third, foretold": "a step's time follows who is there now, not for how long",
    "tokens left for a third, known": "the same with perfect lengths: it is not the forecast that fails",
}
"""Why a candidate did not become the default, in words."""


LENGTH_RULES = (
    (SOFT, "without stays"),
    ("long stays hold more", SOFT),
    ("tokens left for a third, foretold", SOFT),
    ("tokens left for a third, known", SOFT),
)
"""Rules whose load counts lengths, and what each is compared with."""

ALIKE_LENGTHS = "gpt-oss-20b"
"""The source with lengths as recorded, which follow no domain; others have them by domain."""

FIELDS = {"p50": "median", "p99": "p99", "mean": "mean"}
"""Fields of a Change that the tables show, and their names."""


def write_page(saved: Saved, page: Path) -> None:
    """Put all generated parts into the page. ConfigError where a mark is missing."""
    parts = {
        "verdict": verdict(saved),
        "cases": cases(saved),
        "candidates": candidates(saved),
        "oracles": oracles(saved),
        "lengths": lengths(saved),
    }
    for name, text in parts.items():
        replace_part(page, name, text)


def verdict(saved: Saved) -> str:
    """The three criteria and whether the default meets them."""
    rows, own = saved.rows, saved.below_band(SOFT)
    high = saved.above_jsq(SOFT)
    ratio = saved.against_band(SOFT)
    band = saved.above_jsq(BAND)
    return "\n".join(
        [
            f"On {len(rows)} cases, with {saved.seeds} seeds each:",
            "",
            f"- **median TPOT at least as low as the band's**: in {len(rows) - len(own)} of {len(rows)} "
            f"cases, within the seeds' spread{_but(own)};",
            f"- **p99 TPOT not above JSQ's** by more than the seeds' spread: in {len(rows) - len(high)} of "
            f"{len(rows)} cases{_but(high)}; the band's is above in {len(band)};",
            f"- **{GOAL} times the band's reduction of the median** on average: {ratio:.2f} times "
            f"({saved.average(SOFT, 'p50'):+.1f} % against {saved.average(BAND, 'p50'):+.1f} %); p99 "
            f"{saved.average(SOFT, 'p99'):+.1f} % against {saved.average(BAND, 'p99'):+.1f} %, mean "
            f"{saved.average(SOFT, 'mean'):+.1f} % against {saved.average(BAND, 'mean'):+.1f} %.",
        ]
    )


def cases(saved: Saved) -> str:
    """The table of the default and the band, case by case."""
    shown = (BAND, SOFT)
    head = ["case", "evidence", "batch", *(f"`{rule}`: {what}" for rule in shown for what in FIELDS.values())]
    rows = [
        [
            row.title,
            row.evidence,
            f"{row.jsq['batch']:.0f}",
            *(cell for rule in shown for cell in _cells(row, rule)),
        ]
        for row in saved.rows
    ]
    average = ["**average**", "", ""]
    for rule in shown:
        average += [f"**{saved.average(rule, field):+.1f} %**" for field in FIELDS]
    return table(head, [*rows, average])


def candidates(saved: Saved) -> str:
    """The table of what was tried."""
    head = ["rule", *FIELDS.values(), "median above band's", "p99 above JSQ's", "times the band", "why not"]
    rules = [BAND, SOFT, *_measured(saved, CANDIDATES)]
    rows = [[*_summary(saved, rule), WHY.get(rule, "")] for rule in rules]
    return table(head, rows)


def _summary(saved: Saved, rule: str) -> list[str]:
    return [
        _named(rule),
        *(f"{saved.average(rule, field):+.1f} %" for field in FIELDS),
        f"{len(saved.below_band(rule))} of {len(saved.rows)}",
        f"{len(saved.above_jsq(rule))} of {len(saved.rows)}",
        f"{saved.against_band(rule):.2f}",
    ]


def oracles(saved: Saved) -> str:
    """What knowing the future is worth, and what share of it each rule reaches."""
    if not (known := _measured(saved, ORACLES)):
        return "Not run yet."
    head = ["rule", *FIELDS.values(), "share of the best oracle"]
    rows = [
        [
            _named(rule),
            *(f"{saved.average(rule, field):+.1f} %" for field in FIELDS),
            f"{saved.share(rule):.0f} %",
        ]
        for rule in (*known, SOFT, BAND)
    ]
    best = -sum(row.best_oracle for row in saved.rows) / len(saved.rows)
    shown = table(head, [*rows, ["best oracle of each case", "", "", f"{best:+.1f} %", "100 %"]])
    missed = saved.below_band(SOFT)
    return f"{shown}\n\n{_out_of_reach(len(saved.beyond_oracles(missed)), len(missed))}" if missed else shown


def _out_of_reach(beyond: int, missed: int) -> str:
    """Whether better knowledge would have reached the band's median."""
    return (
        f"In {beyond} of the {missed} cases in which `{SOFT}` misses the band's median, every oracle misses "
        "it, too: that median is bought with the tail."
    )


def lengths(saved: Saved) -> str:
    """What load that counts how long requests stay did, in points of percent: where lengths differ or not."""
    pairs = [pair for pair in LENGTH_RULES if len(_measured(saved, pair)) == len(pair)]
    if not pairs:
        return "Not run yet."
    alike = [row for row in saved.rows if row.source == ALIKE_LENGTHS]
    differ = [row for row in saved.rows if row not in alike]
    groups = {"lengths differ by domain": differ, "recorded lengths": alike}
    head = ["load", "against", *(f"{name}: {what}" for name in groups for what in FIELDS.values())]
    return table(
        head,
        [
            [_named(rule), _named(other), *_points([groups[name] for name in groups], rule, other)]
            for rule, other in pairs
        ],
    )


def _points(groups: Iterable[Sequence[Row]], rule: str, other: str) -> list[str]:
    """By how many points each field is above another rule's, averaged over each group of cases."""

    def average(rows: Sequence[Row], field: str) -> float:
        return mean(
            [getattr(row.rules[rule], field).mean - getattr(row.rules[other], field).mean for row in rows]
        )

    return [f"{average(rows, field):+.1f}" if rows else "" for rows in groups for field in FIELDS]


def _named(rule: str) -> str:
    """Policies by the names that they have in the configuration."""
    return rule if rule in CANDIDATES or rule in ORACLES else f"`{rule}`"


def _measured(saved: Saved, rules: Iterable[str]) -> list[str]:
    """Those that were run in every case."""
    return [rule for rule in rules if all(rule in row.rules for row in saved.rows)]


def _cells(row: Row, rule: str) -> list[str]:
    change = row.rules[rule]
    return [str(getattr(change, field)) for field in FIELDS]


def _but(rows: Sequence[Row]) -> str:
    return f" (not: {'; '.join(row.title for row in rows)})" if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
