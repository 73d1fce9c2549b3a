"""Tables of a report: for the terminal and in Markdown, from the same columns."""

from rich.table import Table

from eldr.bench.report import LOCALITY, Report
from eldr.bench.results import Row

COLUMNS = (
    "policy",
    "active experts",
    "change",
    "mean batch",
    "vs random batches",
    "TPOT p50 ms",
    "TPOT p99 ms",
    "change p50",
    "TTFT p50 ms",
    "requests per worker",
)


def cells(report: Report) -> list[list[str]]:
    """One line a policy. Changes are those of locality_band against the best baseline."""
    return [_cells(report, entry) for entry in report.rows]


def _cells(report: Report, entry: Row) -> list[str]:
    own = entry.policy == LOCALITY
    active, tpot = report.active_experts if own else None, report.tpot_p50 if own else None
    return [
        entry.policy,
        f"{entry.active_experts:.2f}",
        "" if active is None else f"{active.ratio:+.1%}",
        f"{entry.mean_batch:.1f}",
        f"{report.against_mixed[entry.policy]:+.1%}",
        f"{entry.tpot_p50_ms:.1f}",
        f"{entry.tpot_p99_ms:.1f}",
        "" if tpot is None else f"{tpot.ratio:+.1%}",
        f"{entry.ttft_p50_ms:.0f}",
        " ".join(str(number) for number in entry.per_worker.values()),
    ]


def rich_table(report: Report) -> Table:
    """The table for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for line in cells(report):
        table.add_row(*line, style="bold green" if line[0] == LOCALITY else None)
    return table


def markdown_table(report: Report) -> str:
    """The table for a document."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells(report)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def findings(report: Report) -> list[str]:
    """What the numbers say, a sentence each."""
    active, tpot, yardstick = report.active_experts, report.tpot_p50, report.offline[0]
    said = []
    if active is not None:
        change = f"{active.ratio:+.1%} against the best baseline, {active.baseline}"
        said.append(f"Active experts a decode step and layer: {change}.")
    said.append(f"Grouping the same requests off line, batch {yardstick.batch}: {yardstick.gain:+.1%}.")
    if report.live_share is not None:
        said.append(f"So the live run reached {report.live_share:.0%} of what grouping gives off line.")
    if tpot is not None:
        said.append(f"Median TPOT: {tpot.ratio:+.1%} against the best baseline, {tpot.baseline}.")
    return [*said, *_disturbed(report), _outputs(report)]


def _disturbed(report: Report) -> list[str]:
    """A warning where policies had batches of other sizes: larger ones activate more experts."""
    batches = [entry.mean_batch for entry in report.rows]
    if max(batches) < 1.15 * min(batches):
        return []
    return [
        f"Mean batches go from {min(batches):.1f} to {max(batches):.1f}: other work disturbed the machine. "
        "Compare the column against random batches of the same sizes, or run again on a quiet one."
    ]


def _outputs(report: Report) -> str:
    if report.different:
        first = report.different[0]
        return (
            f"Outputs: {len(report.different)} of {report.checked} DIFFER from plain vLLM's; "
            f"first: request {first.request} under {first.policy}, after {first.same} equal characters."
        )
    return f"Outputs: all {report.checked} equal those of a plain vLLM."
