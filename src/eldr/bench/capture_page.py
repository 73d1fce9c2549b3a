"""Writes the cost of capture into docs/capture.md, from what `make bench-capture` measured.

python -m eldr.bench.capture_page docs/bench/capture.json docs/capture.md
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from eldr.bench.documents import replace_part
from eldr.program import run

PART = "capture cost"


def cost(report: dict[str, Any]) -> str:
    """Times and memory as Markdown."""
    machine, load = report["machine"], report["load_average"][0]
    lines = [
        f"{report['rounds']} rounds, {machine['cores']} cores, load average {load:.1f} as they began. "
        "Medians, and quartiles of the paired differences, which say how much of it is the machine.\n",
        "| | off | on | difference, median (quartiles) | ratio |",
        "|---|---|---|---|---|",
        *_times("prefill, {} tokens", report["prefill"]),
        *_times("decode step, batch {}", report["decode_step"]),
        "\nMemory is arithmetic: one byte a KV block, layer and expert, at tensor parallel size 1.\n",
        "| | counts a block | share of the KV bytes |",
        "|---|---|---|",
        *(
            f"| {name}, {memory['block_tokens']}-token blocks | {memory['count_bytes_a_block']} B "
            f"| {memory['share']:.2%} |"
            for name, memory in report["memory"].items()
        ),
    ]
    return "\n".join(lines)


def _times(title: str, measured: dict[str, Any]) -> Iterator[str]:
    for size, one in measured.items():
        difference = one["difference_ms"]
        yield (
            f"| {title.format(size)} | {one['off_ms']:.1f} ms | {one['on_ms']:.1f} ms "
            f"| {difference['p50']:+.1f} ms ({difference['p25']:.1f} to {difference['p75']:.1f}) "
            f"| {one['ratio']['p50']:.3f} |"
        )


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(report: Path, page: Path) -> None:
    """Write the tables into PAGE."""
    replace_part(page, PART, cost(json.loads(report.read_text("utf-8"))))


if __name__ == "__main__":
    run(main)
