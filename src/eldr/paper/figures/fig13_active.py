"""Figure 13: active experts a decode step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eldr.paper import grid
from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.grid import FIRST_HAND, OURS, RATES, ROUTERS, cell
from eldr.paper.measure.benchmarks import digest, kept
from eldr.paper.pieces import Piece
from eldr.paper.style import band, panels, policy_color

LIVE = {"active_experts_k4": "four decode workers", "tpot_wide": "two decode workers, memory-bound"}
"""The project's live runs, see docs/results.md."""

CELLS = (("qwen3-30b-a3b", "tasks"), ("gpt-oss-20b", "fields of knowledge"))


def _pieces() -> dict[str, Piece]:
    live = {name: Piece(kept, {"name": f"{name}.json", "digest": digest(f"{name}.json")}) for name in LIVE}
    return {**live, **grid.routed(run for own in CELLS for run in cell(*own))}


def _result(outputs: Outputs) -> Result:
    findings = [_live(name, outputs[name]) for name in LIVE]
    findings += [
        grid.finding("active", runs[0], grid.against(outputs, runs, FIRST_HAND, "active_experts"), "fitted")
        for runs in (cell(*own) for own in CELLS)
    ]
    qwen = cell(*CELLS[0])
    lines = {
        router: [grid.spread_of(outputs, replace(run, router=router), "active_experts") for run in qwen]
        for router in ROUTERS
    }
    rows = [
        [
            LIVE[name],
            row["policy"],
            f"{row['active_experts']:.2f}",
            f"{row['mean_batch']:.1f}",
            f"{outputs[name]['against_mixed'][row['policy']]:+.1%}",
        ]
        for name in LIVE
        for row in outputs[name]["rows"]
    ]
    columns = ["live run", "policy", "active experts", "batch", "against random batches of the same sizes"]
    return Result(findings, {"rates": RATES, "lines": lines}, [Table("On real engines", columns, rows)])


def _live(name: str, report: Mapping[str, Any]) -> Finding:
    """Ours against round-robin, both against random batches of the same sizes, so that their batches do not
    matter."""
    relative = report["against_mixed"]
    repeats = report["settings"]["repeats"]
    return Finding(
        claim="active",
        source=f"embedded model, {LIVE[name]}",
        evidence=report["evidence"],
        role="direction",
        mean=100 * ((1 + relative[OURS]) / (1 + relative[FIRST_HAND]) - 1),
        over=f"{repeats} repeat(s), equal batch sizes",
    )


def _draw(plt: Any, result: Result) -> Any:
    figure, (left, right) = panels(plt, 2, width=3.8, height=3.2)
    for router, spread in result.series["lines"].items():
        band(
            left,
            result.series["rates"],
            spread,
            color=policy_color(router),
            label=router,
            lw=2.2 if router == OURS else 1.2,
        )
    left.set(
        xlabel="requests/s", ylabel="active experts a step and layer", title="qwen3-30b-a3b, tasks (model)"
    )
    left.legend(fontsize=7)
    names = [f"{f.source}\n({f.evidence})" for f in result.findings]
    right.barh(names, [f.mean for f in result.findings], color=policy_color(OURS))
    right.set(xlabel="against round-robin (%)", title="locality_band", xlim=(-24, 0))
    right.axvline(-22.0, color="#009E73", ls="--", lw=1, label="paper")
    right.tick_params(axis="y", labelsize=7)
    right.legend(fontsize=7)
    return figure


def _why(result: Result) -> str:
    model = next(f for f in result.findings if f.role == "fitted")
    return (
        f"The synthetic Qwen3 ({model.mean:+.1f} %) had this number among its targets (grouping by 16 "
        "balanced clusters at batch 32), so it counts for nothing here. The embedded model has 64 experts, "
        "four layers, and domains that are further apart than those of a large model; GPT-OSS-20B has 32 "
        "experts, of which a batch soon activates all."
    )


register(
    Figure(
        id="fig13",
        title="Active experts a decode step",
        says="Qwen3-30B-A3B, tasks: 22.0 % fewer active experts a step than with round-robin.",
        claims={"active": Claim("active experts a step against round-robin, tasks", -22.0, -22.0, slack=1)},
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: (
            "The paper's model on real engines: `eldr serve` with its profile, and the engines' own counters."
        ),
    )
)
