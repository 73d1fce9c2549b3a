"""Writes the table of docs/traces.md: what each source of expert choices holds, measured on it.

python -m eldr.bench.traces_page docs/traces.md
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np

from eldr.bench.documents import replace_part
from eldr.program import run
from eldr.traces import ExpertTraces
from eldr.traces.embedded import embedded
from eldr.traces.recorded import deepseek_v2_lite, gpt_oss_20b
from eldr.traces.statistics import (
    domain_correlation,
    domain_share,
    grouping_change,
    request_correlation,
)

SOURCES: Mapping[str, Callable[[], ExpertTraces]] = {
    "`recorded.gpt_oss_20b()`": gpt_oss_20b,
    "`recorded.deepseek_v2_lite()`": deepseek_v2_lite,
    '`embedded.embedded(workload="tasks")`': lambda: embedded(workload="tasks"),
    '`embedded.embedded(workload="languages")`': lambda: embedded(workload="languages"),
}

BATCHES = (8, 16, 32)
HEAD = (
    "| source | evidence | requests, labels | L x E, top-k | prompt tokens | decoded tokens | "
    f"active experts, one label against mixed, batch {' / '.join(map(str, BATCHES))} | "
    "prefill and decode correlate: label / request | share that the label has |"
)


def row(name: str, traces: ExpertTraces) -> str:
    """One source. Tokens are medians; the statistics are those of `eldr.traces.statistics`."""
    assert traces.ids is not None
    decoded = np.median(traces.ids.tokens())
    shape = f"{traces.num_layers} x {traces.num_experts}, {traces.top_k}"
    changes = " / ".join(_change(traces, batch) for batch in BATCHES)
    cells = [
        name,
        traces.evidence,
        f"{len(traces):,}, {len(np.unique(traces.label))}",
        shape,
        f"{np.median(traces.prompt_tokens):.0f}",
        f"{decoded:.0f}",
        changes,
        f"{domain_correlation(traces):.2f} / {request_correlation(traces):.2f}",
        f"{domain_share(traces):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _change(traces: ExpertTraces, batch: int) -> str:
    """ "-" where fewer than two labels have so many requests."""
    _, sizes = np.unique(traces.label, return_counts=True)
    if (sizes >= batch).sum() < 2:
        return "-"
    return f"{grouping_change(traces.decode_rates(), traces.label, batch)[2]:+.1%}"


def table() -> str:
    """The table of all sources. CalibrationError where a source's data is not there."""
    rows = [row(name, load()) for name, load in SOURCES.items()]
    return "\n".join([HEAD, "|---" * (HEAD.count("|") - 1) + "|", *rows])


@click.command()
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(page: Path) -> None:
    """Put the table into PAGE."""
    replace_part(page, "sources", table())


if __name__ == "__main__":
    run(main)
