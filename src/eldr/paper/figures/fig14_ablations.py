"""Figures 14 to 16: what each part of the method adds, at one rate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from eldr.paper import grid
from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.grid import ABLATED, CELLS, FIRST_HAND, Run
from eldr.paper.stats import interval
from eldr.paper.style import CYCLE, bar, panels

P50, P99 = "tpot_p50_ms", "tpot_p99_ms"
TRANSFORMATIONS = ("idf", "counts", "binary", "gates", "gates_idf")
TAUS = (0.0, 0.05, 0.1, 0.2)

Variants = Mapping[str, Run]
"""Variants of one cell's run by the name under which they are shown."""


def _transformed(model: str, workload: str) -> Variants:
    own = Run(model=model, workload=workload, gated=True)
    return {name: replace(own, transformation=name) for name in TRANSFORMATIONS}


def _clustered(model: str, workload: str) -> Variants:
    return {name: Run(model=model, workload=workload, clustering=name) for name in ("balanced", "vanilla")}


def _banded(model: str, workload: str) -> Variants:
    return {f"{tau:g}": Run(model=model, workload=workload, tau=tau) for tau in TAUS}


def _base(run: Run) -> Run:
    """Round-robin on the same requests."""
    return Run(model=run.model, workload=run.workload, router=FIRST_HAND, gated=run.gated)


def _pieces(variants: Any) -> Any:
    own = [run for cell in CELLS for run in variants(*cell).values()]
    return grid.pieces([*own, *dict.fromkeys(map(_base, own))])


def _series(outputs: Outputs, variants: Any) -> dict[str, Any]:
    """Percent against round-robin: cell -> variant -> metric -> (mean, low, high)."""
    return {
        f"{model}, {workload}": {
            name: {metric: interval(grid.change(outputs, run, _base(run), metric)) for metric in (P50, P99)}
            for name, run in variants(model, workload).items()
        }
        for model, workload in CELLS
    }


def _table(series: Mapping[str, Any]) -> Table:
    names = list(next(iter(series.values())))
    columns = ["cell", *(f"{name}: p50 / p99" for name in names)]
    rows = [
        [cell, *(f"{own[name][P50][0]:+.1f} / {own[name][P99][0]:+.1f}" for name in names)]
        for cell, own in series.items()
    ]
    return Table(f"TPOT against round-robin (%), {ABLATED} requests a second, mean over seeds", columns, rows)


def _transformations(outputs: Outputs) -> Result:
    findings = []
    for cell in CELLS:
        own = _transformed(*cell)
        for key, other in (("gates", "gates"), ("counts", "counts")):
            gains = [grid.change(outputs, own[name], _base(own[name]), P50) for name in ("idf", other)]
            points = [ours - other for ours, other in zip(*gains, strict=True)]
            findings.append(grid.finding(key, own["idf"], points))
    series = _series(outputs, _transformed)
    return Result(findings, series, [_table(series)])


def _clusters(outputs: Outputs) -> Result:
    findings = []
    for cell in CELLS:
        own = _clustered(*cell)
        for key, metric in (("median", P50), ("p99", P99)):
            values = grid.change(outputs, own["vanilla"], own["balanced"], metric)
            findings.append(grid.finding(key, own["balanced"], values))
    series = _series(outputs, _clustered)
    return Result(findings, series, [_table(series), _busiest(outputs)])


def _busiest(outputs: Outputs) -> Table:
    rows = [
        [
            f"{model}, {workload}",
            *(
                f"{sum(v := run.of(outputs, 'busiest')) / len(v):.2f}"
                for run in _clustered(model, workload).values()
            ),
        ]
        for model, workload in CELLS
    ]
    return Table("Requests of the busiest worker over the mean", ["cell", "balanced", "vanilla"], rows)


def _bands(outputs: Outputs) -> Result:
    series = _series(outputs, _banded)
    findings, worse = [], 0
    for cell in CELLS:
        own = _banded(*cell)
        best = min((name for name in own if name != "0.1"), key=lambda name: sum(own[name].of(outputs, P50)))
        values = grid.change(outputs, own["0.1"], own[best], P50)
        findings.append(
            grid.finding("best", own["0.1"], values, source=f"{cell[0]}, {cell[1]}; best other: tau {best}")
        )
        worse += series[f"{cell[0]}, {cell[1]}"]["0"][P99][0] > 0
    findings.append(
        Finding(
            claim="regressed",
            source="all cells",
            evidence="model",
            role="number",
            mean=worse,
            over=f"of {len(CELLS)} cells",
        )
    )
    return Result(findings, series, [_table(series)])


def _draw(plt: Any, result: Result) -> Any:
    figure, axes = panels(plt, 2, width=6.4, height=3.4)
    cells = list(result.series)
    names = list(next(iter(result.series.values())))
    width = 0.8 / len(names)
    for panel, (metric, title) in zip(axes, ((P50, "median TPOT"), (P99, "p99 TPOT")), strict=True):
        for place, (name, color) in enumerate(zip(names, CYCLE, strict=False)):
            at = [n + (place + 0.5) * width - 0.4 for n in range(len(cells))]
            bar(
                panel,
                at,
                [result.series[cell][name][metric] for cell in cells],
                width=width,
                color=color,
                label=name,
            )
        panel.set_xticks(range(len(cells)), [cell.replace(", ", "\n") for cell in cells], fontsize=6)
        panel.set(ylabel="against round-robin (%)", title=title)
        panel.axhline(0, color="black", lw=0.6)
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=len(names), loc="outside lower center")
    return figure


def _span(result: Result, claim: str) -> str:
    means = [finding.mean for finding in result.findings if finding.claim == claim]
    return f"{min(means):+.1f} to {max(means):+.1f}"


def _mean(result: Result, variant: str, metric: str) -> float:
    """A variant's change against round-robin, mean over cells."""
    return float(np.mean([own[variant][metric][0] for own in result.series.values()]))


def _why_transformations(result: Result) -> str:
    medians = {name: _mean(result, name, P50) for name in TRANSFORMATIONS}
    worst = max(medians, key=lambda name: medians[name])
    return (
        f"IDF counts against raw gate probabilities: {_span(result, 'gates')} points; against raw counts: "
        f"{_span(result, 'counts')} points. Mean over cells: "
        f"{', '.join(f'{n} {v:+.1f} %' for n, v in medians.items())}; what loses most is {worst}. The "
        "domains of the synthetic models are told apart by any signature that says how often an expert is "
        "used. Here a gate's probabilities are the softmax of the very logits that choose, with as much "
        "noise from token to token as makes the choices; a real router's may be flatter, and then tell less."
    )


def _why_clusters(result: Result) -> str:
    return (
        f"Vanilla against balanced K-means: median {_span(result, 'median')} %, p99 {_span(result, 'p99')} "
        "%. The paper says by how much at the worst. How uneven vanilla clusters are depends on how uneven "
        "the domains are and on how well topics within them split; the table shows how many requests the "
        "busiest worker gets."
    )


def _why_bands(result: Result) -> str:
    p99 = {f"{tau:g}": _mean(result, f"{tau:g}", P99) for tau in TAUS}
    best = min(p99, key=lambda name: p99[name])
    return (
        f"tau 0.1 against the best other tau: {_span(result, 'best')} % of median TPOT; the p99 is lowest "
        f"with tau {best} ({', '.join(f'{name}: {value:+.1f} %' for name, value in p99.items())}, mean over "
        "cells). What tau means depends on how similarities spread, which is not the same for every model "
        "and transformation: a band of 0.1 holds few workers where centroids lie far apart. The paper tried "
        "four values; which ones was not at hand."
    )


def _figure(
    number: int,
    title: str,
    says: str,
    claims: Mapping[str, Claim],
    variants: Any,
    result: Any,
    why: Any,
    change: str,
) -> None:
    register(
        Figure(
            id=f"fig{number}",
            title=title,
            says=says,
            claims=claims,
            pieces=lambda: _pieces(variants),
            result=result,
            draw=_draw,
            why=why,
            change=lambda _: change,
        )
    )


_figure(
    14,
    "Transformations, by what they save",
    "IDF-weighted counts lower TPOT by 3 to 14 points more than gate probabilities do.",
    {
        "gates": Claim("median TPOT, IDF counts less raw gate probabilities", -14, -3, "points"),
        "counts": Claim("median TPOT, IDF counts less raw counts", unit="points"),
    },
    _transformed,
    _transformations,
    _why_transformations,
    "Gate probabilities of a real model.",
)
_figure(
    15,
    "Balanced against vanilla K-means",
    "The same median, but vanilla K-means raises p99 TPOT by up to 17.4 %.",
    {
        "median": Claim("median TPOT, vanilla against balanced", 0, 0, sign=0, slack=1),
        "p99": Claim("p99 TPOT, vanilla against balanced", 0, 17.4, sign=1),
    },
    _clustered,
    _clusters,
    _why_clusters,
    "A more skewed mix of requests, or fewer and larger topics: then vanilla clusters differ more in size.",
)
_figure(
    16,
    "Band width tau",
    "Of four values 0.1 is best; with tau 0 the p99 TPOT regresses in 4 of the 6 cells.",
    {
        "best": Claim("median TPOT, tau 0.1 against the best other tau", slack=0),
        "regressed": Claim(
            "cells whose p99 TPOT is above round-robin's with tau 0", 4, 4, "of 6", sign=0, slack=1, digits=0
        ),
    },
    _banded,
    _bands,
    _why_bands,
    "The spread of similarities: `eldr inspect` shows that of a profile, and tau should be chosen by it.",
)
