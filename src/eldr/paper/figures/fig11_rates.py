"""Figures 11 and 12: time per output token of the routers, by request rate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eldr.paper import grid
from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.figures.fig10_main import ASSIGNED, ASSUMED, FITTED, change
from eldr.paper.grid import OURS, RATES, ROUTERS, TPOT, Run, cell
from eldr.paper.pieces import Piece
from eldr.paper.sources import MODELS
from eldr.paper.style import band, policy_color

PAPER_TPOT, PAPER_ACTIVE = -9.8, -22.0
"""Of Qwen3-30B-A3B at 8P16D: Table 2 and Fig. 13."""


def _pieces(workload: str) -> dict[str, Piece]:
    return grid.routed(run for model in MODELS for run in cell(model, workload))


def _by_rate(outputs: Outputs, workload: str, claims: Sequence[str]) -> Result:
    """Figs. 11 and 12: one workload. claims: the key of the median's claim and that of the p99's."""
    findings: list[Finding] = []
    series: dict[str, Any] = {"workload": workload, "rates": RATES, "models": {}, "saved": {}, "points": {}}
    for model in MODELS:
        runs = cell(model, workload)
        for metric, key in zip(TPOT, claims, strict=True):
            findings.append(
                grid.finding(key.format(model=model), runs[0], grid.against_best(outputs, runs, metric))
            )
        series["saved"][model] = [
            sum(values := grid.against(outputs, runs, grid.FIRST_HAND, metric)) / len(values)
            for metric in ("tpot_p50_ms", "active_experts")
        ]
        series["points"][model] = [_point(outputs, run) for run in runs]
        series["models"][model] = {
            metric: {
                router: [grid.spread_of(outputs, replace(run, router=router), metric) for run in runs]
                for router in ROUTERS
            }
            for metric in TPOT
        }
    return Result(findings, series, [_by_rate_table(series)])


def _point(outputs: Outputs, run: Run) -> dict[str, list[Any]]:
    """One rate by itself: each metric against its best baseline (percent, mean over seeds), and which that
    is."""
    point = {}
    for metric in TPOT:
        best = grid.best_baseline(outputs, run, metric)
        values = grid.change(outputs, run, best, metric)
        point[metric] = [sum(values) / len(values), best.router]
    return point


def _by_rate_table(series: dict[str, Any]) -> Table:
    rows = [
        [
            model,
            f"{rate:g}",
            *(cell for value, router in point.values() for cell in (f"{value:+.1f} %", router)),
        ]
        for model, points in series["points"].items()
        for rate, point in zip(series["rates"], points, strict=True)
    ]
    return Table("By rate", ["model", "requests/s", "median TPOT", "against", "p99 TPOT", "against"], rows)


def _draw_rates(plt: Any, result: Result) -> Any:
    models = result.series["models"]
    figure, axes = plt.subplots(2, len(models), figsize=(3.3 * len(models), 5.2), sharex=True)
    for column, (model, own) in enumerate(models.items()):
        for row, (metric, name) in enumerate(TPOT.items()):
            panel = axes[row][column]
            for router, spread in own[metric].items():
                strong = {"lw": 2.2, "zorder": 3} if router == OURS else {"lw": 1.2}
                band(
                    panel, result.series["rates"], spread, color=policy_color(router), label=router, **strong
                )
            panel.set_title(f"{model} (model)" if not row else "")
            panel.set_ylabel(name if not column else "")
            panel.set_xlabel("requests/s" if row else "")
    figure.legend(*axes[0][0].get_legend_handles_labels(), ncols=len(ROUTERS), loc="outside lower center")
    return figure


def _why(result: Result) -> str:
    median = [finding.mean for finding in result.findings if finding.claim == "median"]
    said = f"{FITTED}Median TPOT against the best baseline: {min(median):+.1f} to {max(median):+.1f} %. "
    more = _elasticity(result) if result.series["workload"] == "tasks" else _tail(result)
    return f"{said}{_rates(result)} {more} {ASSUMED}"


def _rates(result: Result) -> str:
    """How the gain depends on the rate."""
    rates = result.series["rates"]
    ends = [
        f"{model} {points[0]['tpot_p50_ms'][0]:+.1f} % at {rates[0]} and {points[-1]['tpot_p50_ms'][0]:+.1f} "
        f"% at {rates[-1]}"
        for model, points in result.series["points"].items()
    ]
    return (
        f"By rate (requests a second): {'; '.join(ends)}. At low rates a worker decodes few requests at "
        "once, which have few experts to share, while uneven loads cost as much as ever."
    )


def _tail(result: Result) -> str:
    """What becomes of the p99."""
    worse = [f"{f.mean:+.1f} %" for f in result.findings if f.claim.startswith("p99") and f.mean > 0]
    if not worse:
        return "The p99 does not regress."
    return (
        f"The p99 regresses ({', '.join(worse)}), against JSQ, which keeps loads even: with a skewed mix a "
        "band of tau 0.1 holds few of the workers, and the busiest of them decode the largest batches. Fig. "
        "16 shows that a wider band helps."
    )


def _elasticity(result: Result) -> str:
    """How much of what is saved in experts is saved in time, here and in the paper."""
    model, (tpot, active) = next(iter(result.series["saved"].items()))
    ours, papers = tpot / active, PAPER_TPOT / PAPER_ACTIVE
    said = (
        f"Against round-robin {model} activates {active:+.1f} % experts and takes {tpot:+.1f} % TPOT, "
        f"{ours:.2f} for each percent; the paper's numbers for it ({PAPER_TPOT:+.1f} % in Table 2, against "
        f"the best baseline, and {PAPER_ACTIVE:+.1f} % in Fig. 13) make {papers:.2f}."
    )
    if ours < papers:
        return said
    return said + (
        " So a step of the paper's engines has more in it that does not depend on experts (scheduling, "
        "communication, longer contexts) than the kernels' times that ours is made of."
    )


TASKS = {
    "median": Claim("median TPOT against the best baseline, tasks", -13.9, -7.0),
    "p99": Claim("p99 TPOT against the best baseline, tasks", -6.0, -3.4),
}
LANGUAGES = {
    "median": Claim("median TPOT against the best baseline, languages", -10.0, -5.9),
    "p99 qwen3-30b-a3b": Claim("p99 TPOT against the best baseline, languages, Qwen3", -6.2, -6.2, slack=1),
    "p99 gpt-oss-120b": Claim("p99 TPOT, languages, GPT-OSS: regresses slightly", 0, 2, sign=1),
    "p99 gemma-4-26b-a4b": Claim("p99 TPOT, languages, Gemma: regresses slightly", 0, 2, sign=1),
}

register(
    Figure(
        id="fig11",
        title="TPOT by request rate, tasks",
        says="On tasks, version 1: median TPOT 7.0 to 13.9 % and p99 3.4 to 6.0 % lower than with the best "
        "baseline." + ASSIGNED,
        claims=TASKS,
        pieces=lambda: _pieces("tasks"),
        result=lambda outputs: _by_rate(outputs, "tasks", ("median", "p99")),
        draw=_draw_rates,
        why=_why,
        change=change,
    )
)
register(
    Figure(
        id="fig12",
        title="TPOT by request rate, languages",
        says="On languages, version 1: median TPOT 5.9 to 10.0 % lower; p99 6.2 % lower for Qwen3, while "
        "that of GPT-OSS and Gemma "
        "regresses slightly (by how much was not at hand; up to 2 % is taken as slightly)." + ASSIGNED,
        claims=LANGUAGES,
        pieces=lambda: _pieces("languages"),
        result=lambda outputs: _by_rate(outputs, "languages", ("median", "p99 {model}")),
        draw=_draw_rates,
        why=_why,
        change=change,
    )
)
