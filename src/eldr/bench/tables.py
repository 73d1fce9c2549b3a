"""Tables of a report: for the terminal and in Markdown, from the same columns."""

from rich.table import Table

from eldr.bench.report import Gain, Report
from eldr.bench.results import BASELINES, Row

COLUMNS = (
    "policy",
    "active experts",
    "change",
    "vs random",
    "batch",
    "TPOT p50",
    "p99 ms",
    "change",
    "TTFT p50 ms",
    "per worker",
)
"""Changes are against the best baseline, that of active experts only where batches are alike; "vs random" is
against random batches of the same sizes.
"""

TIMES = range(COLUMNS.index("TPOT p50"), COLUMNS.index("per worker"))
TIMELESS = tuple(column for column in range(len(COLUMNS)) if column not in TIMES)
"""The columns that hold no times: for runs where an active expert costs nothing."""

DISTURBED = 1.15
"""So much may the largest mean batch of a policy be above the smallest: larger ones activate more experts."""


def cells(report: Report) -> list[list[str]]:
    """One line a policy."""
    return [_cells(report, entry) for entry in report.rows]


def _cells(report: Report, entry: Row) -> list[str]:
    gain = next((gain for gain in report.gains if gain.policy == entry.policy), None)
    return [
        entry.policy,
        f"{entry.active_experts:.2f}",
        "" if gain is None or is_disturbed(report) else f"{gain.active_experts.ratio:+.1%}",
        f"{report.against_mixed[entry.policy]:+.1%}",
        f"{entry.mean_batch:.1f}",
        f"{entry.tpot_p50_ms:.1f}",
        f"{entry.tpot_p99_ms:.1f}",
        "" if gain is None else f"{gain.tpot_p50.ratio:+.1%}",
        f"{entry.ttft_p50_ms:.0f}",
        "/".join(str(number) for number in entry.per_worker.values()),
    ]


def rich_table(report: Report, *, times: bool = True) -> Table:
    """The table for a terminal of at least 100 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = range(len(COLUMNS)) if times else TIMELESS
    for column in (COLUMNS[place] for place in shown):
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for line in cells(report):
        table.add_row(*(line[place] for place in shown), style=None if line[0] in BASELINES else "bold green")
    return table


def markdown_table(report: Report, *, times: bool = True) -> str:
    """The table for a document."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells(report)]
    shown = range(len(COLUMNS)) if times else TIMELESS
    return "\n".join("| " + " | ".join(line[column] for column in shown) + " |" for line in lines)


def findings(report: Report, *, times: bool = True) -> list[str]:
    """What the numbers say, a sentence each."""
    yardstick = report.offline[0]
    grouped = f"Grouping these requests off line, in batches of {yardstick.batch}: {yardstick.gain:+.1%}"
    shares = {gain.policy: gain.live_share for gain in report.gains if gain.live_share is not None}
    live = ", ".join(f"{share:.0%} by {policy}" for policy, share in shares.items())
    return [
        *([_disturbed(report)] if is_disturbed(report) else []),
        *(_gain(gain, times=times, alike=not is_disturbed(report)) for gain in report.gains),
        f"{grouped}; live, at equal sizes: {live} of that." if live else f"{grouped}.",
        _outputs(report),
    ]


def is_disturbed(report: Report) -> bool:
    """Did other work on the machine make batches differ between policies? Active experts go with them."""
    batches = [entry.mean_batch for entry in report.rows]
    return max(batches) >= DISTURBED * min(batches)


def _gain(gain: Gain, *, times: bool, alike: bool) -> str:
    active, same, tpot = gain.active_experts, gain.same_batch, gain.tpot_p50
    said = f"{gain.policy}: {(active if alike else same).ratio:+.1%} active experts a decode step and layer"
    if alike:
        said += f" against the best baseline, {active.baseline}; {same.ratio:+.1%} if both had batches of the"
        said += " same sizes"
    else:
        said += f" against the best baseline, {same.baseline}, in batches of the same sizes"
    return f"{said}; median TPOT {tpot.ratio:+.1%} against {tpot.baseline}." if times else f"{said}."


def _disturbed(report: Report) -> str:
    batches = [entry.mean_batch for entry in report.rows]
    return (
        f"Mean batches go from {min(batches):.1f} to {max(batches):.1f}: other work disturbed the machine. "
        "Only what is said for equal batch sizes holds; run again on a quiet machine for the rest."
    )


def _outputs(report: Report) -> str:
    if report.different:
        first = report.different[0]
        return (
            f"Outputs: {len(report.different)} of {report.checked} DIFFER from plain vLLM's; "
            f"first: request {first.request} under {first.policy}, after {first.same} equal characters."
        )
    return f"Outputs: all {report.checked} equal those of a plain vLLM."
