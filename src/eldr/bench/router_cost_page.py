"""The page and the plot of `eldr.bench.router_cost`, from its saved report only.

python -m eldr.bench.router_cost_page --report docs/bench/router.json --page docs/performance.md
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from eldr.bench.plots import GREYS, OURS, pyplot, save_figure
from eldr.files import replacing
from eldr.program import run

PEER = "vllm-router"
TARGETS = {
    "cpu_per_chunk_us": ("CPU a streamed chunk", 0.7),
    "cpu_per_request_us": ("CPU a request of one token", 0.8),
    "p99_added": ("p99 of the TTFT added", 1.0),
}
"""What must be at most this part of the peer's, at each number of connections."""

NOT_SLOWER = 1.2
"""CPU a chunk at the most connections, against the fewest."""

WHY = """\
Why: of a streamed chunk, the system calls are the least there can be, one read and one write, and Python
between them compares a few bytes; a splice that looks at nothing costs about a sixth less. A request costs
as many system calls as a router can do with, and Python for the rest, which takes more instructions than
compiled code. What was tried, and what it gave: [ADR 9](adr/0009-lean-paths.md) and
[ADR 14](adr/0014-own-server.md)."""

Cell = dict[str, float]


def summary(report: dict[str, Any]) -> dict[tuple[str, int], Cell]:
    """Medians over repeats, by router and connections. TTFT added is to the same way without a router."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["router"], row["connections"]), []).append(row)
    cells = {key: _cell(rows) for key, rows in groups.items()}
    for (router, connections), cell in cells.items():
        without = "none, decode only" if router == "sglang-router" else "none, hand-off"
        if (base := cells.get((without, connections))) is not None:
            for name in ("p50", "p99"):
                cell[f"{name}_added"] = cell[name] - base[name]
    return cells


def _cell(rows: list[dict[str, Any]]) -> Cell:
    numbers = ("cpu_per_chunk_us", "cpu_per_request_us", "peak_mib")
    cell = {name: float(np.median([row[name] for row in rows])) for name in numbers if rows[0][name]}
    for name, percent in (("p50", 50), ("p99", 99)):
        cell[name] = float(np.median([np.percentile(row["ttft_ms"], percent) for row in rows]))
    return cell


def page(report: dict[str, Any]) -> str:
    """docs/performance.md."""
    cells = summary(report)
    columns: dict[str, Callable[[Cell], str]] = {
        "CPU a chunk (us)": lambda cell: _number(cell, "cpu_per_chunk_us", 1),
        "CPU a request (us)": lambda cell: _number(cell, "cpu_per_request_us", 0),
        "TTFT added p50 (ms)": lambda cell: _number(cell, "p50_added", 2),
        "TTFT added p99 (ms)": lambda cell: _number(cell, "p99_added", 2),
        "peak (MiB)": lambda cell: _number(cell, "peak_mib", 0),
    }
    lines = ["| router | connections | " + " | ".join(columns) + " |", "|---|--:|" + "--:|" * len(columns)]
    for (router, connections), cell in sorted(cells.items(), key=lambda item: (item[0][1], item[0][0])):
        values = " | ".join(column(cell) for column in columns.values())
        lines.append(f"| {router} | {connections} | {values} |")
    machine, plan = report["machine"], report["plan"]
    named = {"eldr": machine["versions"]["eldr"], **report["peers"]}
    versions = ", ".join(f"{name} {version}" for name, version in named.items())
    return "\n".join(
        [
            "# What the router costs",
            "",
            "Made by `make bench-router` from `docs/bench/router.json`; what is measured, and how, stands in",
            "`eldr.bench.router_cost`. Mock engines, so nothing here depends on a model.",
            "",
            f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
            f"{machine['system']}, Python {machine['python']}; {versions}.",
            f"Load average at the start: {report['load_average']:.1f} (0 on a quiet machine).",
            f"{plan['repeats']} repeats; for each, {plan['window_s']:g} s of streams at "
            f"{report['chunks_per_s']} chunks/s, and {plan['requests']} requests of one token at "
            f"{report['one_token_rate']:g}/s.",
            "",
            *lines,
            "",
            "![CPU a chunk and a request](bench/router.png)",
            "",
            "## Against the targets",
            "",
            *verdicts(cells),
            "",
            WHY,
            "",
        ]
    )


def verdicts(cells: dict[tuple[str, int], Cell]) -> list[str]:
    """One line a router of ours and a target: the ratios, and whether it was reached."""
    sizes = sorted({connections for _, connections in cells})
    lines = []
    for router in sorted({router for router, _ in cells if router.startswith("eldr")}):
        for name, (words, target) in TARGETS.items():
            ratios = [_ratio(cells.get((router, size)), cells.get((PEER, size)), name) for size in sizes]
            lines.append(
                _verdict(f"{router}: {words}, of {PEER}'s, at {_listed(sizes)} connections", ratios, target)
            )
        if len(sizes) > 1:
            many, few = cells.get((router, sizes[-1])), cells.get((router, sizes[0]))
            words = f"{router}: CPU a streamed chunk at {sizes[-1]} connections, of that at {sizes[0]}"
            lines.append(_verdict(words, [_ratio(many, few, "cpu_per_chunk_us")], NOT_SLOWER))
    return lines


def _ratio(ours: Cell | None, other: Cell | None, name: str) -> float | None:
    """None where one is missing, or where the other is not above 0, as noise can make what a router adds."""
    if ours is None or other is None or name not in ours or other.get(name, 0.0) <= 0:
        return None
    return ours[name] / other[name]


def _verdict(words: str, ratios: list[float | None], target: float) -> str:
    shown = _listed("not comparable" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    known = [ratio for ratio in ratios if ratio is not None]
    reached = "not measured" if not known else "reached" if max(known) <= target else "**not reached**"
    return f"- {words}: {shown} (target: at most {target:g}): {reached}."


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def plot(report: dict[str, Any]) -> Any:
    """CPU a chunk and a request, by router and connections."""
    cells = summary(report)
    routers = [name for name in dict.fromkeys(router for router, _ in cells) if not name.startswith("none")]
    sizes = sorted({connections for _, connections in cells})
    figure, both = pyplot().subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axes, name, title in zip(
        both, ("cpu_per_chunk_us", "cpu_per_request_us"), ("a streamed chunk", "a request"), strict=True
    ):
        for place, router in enumerate(sorted(routers)):
            heights = [cells.get((router, size), {}).get(name, 0.0) for size in sizes]
            color = OURS if router == "eldr jsq" else "#e9a3ad" if "eldr" in router else GREYS[place]
            axes.bar(np.arange(len(sizes)) + 0.2 * place, heights, 0.19, label=router, color=color)
        axes.set_xticks(np.arange(len(sizes)) + 0.1 * (len(routers) - 1), [str(size) for size in sizes])
        axes.set(xlabel="connections", ylabel="CPU (us)")
        axes.set_title(f"CPU of the router for {title}", loc="left", fontweight="bold")
    both[0].set_ylim(top=1.3 * both[0].get_ylim()[1])
    both[0].legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    return figure


def _number(cell: Cell, name: str, digits: int) -> str:
    return f"{cell[name]:.{digits}f}" if name in cell else "-"


@click.command()
@click.option("--report", type=click.Path(path_type=Path, exists=True), required=True)
@click.option(
    "--page", "target", type=click.Path(path_type=Path), required=True, help="Markdown file to write."
)
def main(report: Path, target: Path) -> None:
    """Write the page, and the plot beside the report."""
    data = json.loads(report.read_text(encoding="utf-8"))
    with replacing(target) as file:
        file.write(page(data).encode())
    save_figure(plot(data), report.with_suffix(".png"))


if __name__ == "__main__":
    run(main)
