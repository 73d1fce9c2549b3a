"""Figure 2: the latency of a MoE layer follows the active experts, hardly the batch."""

from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.latency import BALANCED, balanced, forced
from eldr.paper.pieces import Piece
from eldr.paper.style import CYCLE, MARKERS, panels

BATCHES = ("32", "64", "128")
FEW, MANY = "16", "128"


def _pieces() -> dict[str, Piece]:
    by_name = {f"{model} on {gpu}": (model, dtype, gpu) for model, dtype, gpu in BALANCED}
    tables = {
        name: Piece(balanced, dict(zip(("model", "dtype", "gpu"), own, strict=True)), "latency")
        for name, own in by_name.items()
    }
    return {"forced": Piece(forced, {}, "latency"), **tables}


def _result(outputs: Outputs) -> Result:
    own = outputs["forced"]
    by_tokens = own["by_tokens"]
    tables = {name: table for name, table in outputs.items() if name != "forced"}
    rises = [by_tokens[batch][MANY] / by_tokens[batch][FEW] for batch in BATCHES]
    source = f"{own['model']}, {own['device']}, forced routing, vLLM 0.19"
    findings = [
        _finding("rise", source, rises, f"batches {', '.join(BATCHES)}"),
        *(_finding("rise", _measured(t), [_rise(t["points"])], "one table") for t in tables.values()),
        _finding("batch", source, _batch_effects(by_tokens), "16 to 128 active experts"),
    ]
    rows = [
        [
            f"{table['model']}, {table['device']}",
            f"{table['a0']:.1f}",
            f"{table['a1']:.2f}",
            f"{table['b']:.2f}",
            f"{table['r2']:.4f}",
        ]
        for table in outputs.values()
    ]
    fit = Table(
        "Least squares: time = a0 + a1 x active experts + b x tokens (us)",
        ["layer", "a0", "a1", "b", "R2"],
        rows,
    )
    return Result(findings, dict(outputs), [fit])


def _finding(claim: str, source: str, values: list[float], over: str) -> Finding:
    mean = sum(values) / len(values)
    spread = f"{min(values):.2f} to {max(values):.2f}, " if len(values) > 1 else ""
    return Finding(
        claim=claim,
        source=source,
        evidence="engine",
        role="number",
        mean=mean,
        over=spread + over,
    )


def _measured(table: dict[str, Any]) -> str:
    return f"{table['model']} {table['dtype']}, {table['device']}, balanced routing, vLLM 0.24"


def _rise(points: list[list[float]]) -> float:
    """Latency at 128 active experts over that at 16, each the fastest measurement."""
    at = {active: min(us for own, us in points if own == active) for active in (int(FEW), int(MANY))}
    return at[int(MANY)] / at[int(FEW)]


def _batch_effects(by_tokens: dict[str, dict[str, float]]) -> list[float]:
    """Latency at the largest batch over that at the smallest, at each number of active experts."""
    small, large = by_tokens[BATCHES[0]], by_tokens[BATCHES[-1]]
    return [large[active] / small[active] for active in small if int(active) >= int(FEW)]


def _draw(plt: Any, result: Result) -> Any:
    figure, (left, right) = panels(plt, 2, height=3.2)
    own = result.series["forced"]
    for batch, color, marker in zip(BATCHES, CYCLE, MARKERS, strict=False):
        points = own["by_tokens"][batch]
        left.plot(
            [int(a) for a in points],
            list(points.values()),
            color=color,
            marker=marker,
            label=f"batch {batch}",
        )
    left.set(
        xlabel="active experts", ylabel="one MoE layer (us)", title=f"{own['model']}, {own['device']}, forced"
    )
    left.legend()
    tables = [table for name, table in result.series.items() if name != "forced"]
    for table, color, marker in zip(tables, CYCLE[3:], MARKERS, strict=False):
        name = f"{table['model']}, {table['device']}"
        right.plot(*zip(*table["points"], strict=True), color=color, marker=marker, label=name, ms=4)
    right.set(xlabel="active experts", ylabel="one MoE layer (us)", title="Balanced routing, 1 to 128 tokens")
    right.legend(fontsize=7)
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    return figure


def _why(result: Result) -> str:
    rises = [finding.mean for finding in result.findings if finding.claim == "rise"]
    return (
        f"From 16 to 128 active experts these layers take {min(rises):.1f} to {max(rises):.1f} times as "
        "long, the paper's 4.7: a fixed cost that weighs less against the weights' reading gives a steeper "
        "rise. None of the GPUs is the paper's MI300X, and the measurements are others' (LLMServingSim, "
        "aiconfigurator), not ours."
    )


register(
    Figure(
        id="fig2",
        title="MoE-layer latency follows active experts, hardly the batch",
        says="Qwen3-30B-A3B on one MI300X: from 16 to 128 active experts a layer takes 4.7 times as long at "
        "batch 64; batches of 32, 64 and 128 with equally many active experts barely differ.",
        claims={
            "rise": Claim(
                "latency, 128 active experts against 16", 4.7, 4.7, "x", sign=1, neutral=1, slack=0.5
            ),
            "batch": Claim(
                "latency, batch 128 against 32, same experts",
                1.0,
                1.0,
                "x",
                sign=0,
                neutral=1,
                slack=0.1,
                digits=2,
            ),
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: (
            "`eldr bench moe-layer` on an MI300X. The fixed cost of a layer (launches, gating) sets the "
            "ratio: captured in a graph it is smaller, and the ratio larger."
        ),
    )
)
