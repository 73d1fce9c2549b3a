"""Figure 17: prefix caching, with and without locality."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eldr.paper import grid
from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.grid import ABLATED, FIRST_HAND, OURS, Run
from eldr.paper.pieces import Piece
from eldr.paper.style import bar, panels, policy_color

CELLS = (("qwen3-30b-a3b", "tasks"), ("gpt-oss-120b", "tasks"))
SHARED = 512
"""Tokens at the beginning of a prompt that all requests of its domain share."""

METRICS = {"ttft_p50_ms": "median TTFT (ms)", "tpot_p50_ms": "median TPOT (ms)"}


def _variants(model: str, workload: str) -> dict[str, Run]:
    base = Run(model=model, workload=workload, prefix_tokens=SHARED)
    return {
        f"{router}, {'cache' if cached else 'no cache'}": replace(base, router=router, prefix_cache=cached)
        for router in (FIRST_HAND, OURS)
        for cached in (False, True)
    }


def _pieces() -> dict[str, Piece]:
    return grid.pieces([run for cell in CELLS for run in _variants(*cell).values()])


def _result(outputs: Outputs) -> Result:
    findings: list[Finding] = []
    series: dict[str, Any] = {}
    for cell in CELLS:
        own = _variants(*cell)
        plain, cached = own[f"{OURS}, no cache"], own[f"{OURS}, cache"]
        findings += [
            grid.finding("ttft", plain, grid.change(outputs, cached, plain, "ttft_p50_ms")),
            grid.finding(
                "tpot", plain, grid.change(outputs, cached, own[f"{FIRST_HAND}, cache"], "tpot_p50_ms")
            ),
            grid.finding("kept", plain, _kept(outputs, own)),
        ]
        series[f"{cell[0]}, {cell[1]}"] = {
            name: {metric: grid.spread_of(outputs, run, metric) for metric in METRICS}
            for name, run in own.items()
        }
    rows = [
        [cell, name, *(f"{spread[0]:.2f}" for spread in own.values())]
        for cell, of in series.items()
        for name, own in of.items()
    ]
    return Result(findings, series, [Table("Mean over seeds", ["cell", "router", *METRICS.values()], rows)])


def _kept(outputs: Outputs, own: Mapping[str, Run]) -> list[float]:
    """Points by which locality's TPOT gain differs with the cache from what it is without."""
    gains = [
        grid.change(outputs, own[f"{OURS}, {kind}"], own[f"{FIRST_HAND}, {kind}"], "tpot_p50_ms")
        for kind in ("cache", "no cache")
    ]
    return [with_cache - without for with_cache, without in zip(*gains, strict=True)]


def _draw(plt: Any, result: Result) -> Any:
    figure, axes = panels(plt, 2, width=4.2, height=3.2)
    cells = list(result.series)
    for panel, (metric, title) in zip(axes, METRICS.items(), strict=True):
        for place, name in enumerate(next(iter(result.series.values()))):
            at = [n + 0.2 * place - 0.3 for n in range(len(cells))]
            style = {"color": policy_color(name.split(",")[0]), "alpha": 0.5 if "no cache" in name else 1.0}
            bar(
                panel,
                at,
                [result.series[cell][name][metric] for cell in cells],
                width=0.19,
                label=name,
                **style,
            )
        panel.set_xticks(range(len(cells)), [cell.replace(", ", "\n") for cell in cells])
        panel.set(ylabel=title)
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=4, fontsize=7, loc="outside lower center")
    return figure


register(
    Figure(
        id="fig17",
        title="Prefix caching",
        says="With prefix caching on, the TTFT gain of the cache and the TPOT gain of locality add up.",
        claims={
            "ttft": Claim("median TTFT with the cache against without, locality_band"),
            "tpot": Claim("median TPOT against round-robin, both with the cache"),
            "kept": Claim(
                "TPOT gain of locality with the cache less without", 0, 0, "points", sign=0, slack=1
            ),
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=lambda _: (
            f"Prompts of one domain share their first {SHARED} tokens here, and the cache never runs full; "
            "signatures are of the whole prompt in both cases, as the counts beside the KV cache make them "
            f"(tested on real engines in `tests/engine`). At {ABLATED} requests a second. The paper's "
            "numbers for this figure were not at hand, so only directions are compared, and that the two "
            "gains add up."
        ),
        change=lambda _: (
            "Real prefixes: how much TTFT falls depends on their length and on how often they come again."
        ),
    )
)
