"""Figure 8: greedy layer selection."""

from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.signatures import layers
from eldr.paper.pieces import Piece
from eldr.paper.roles import role_of
from eldr.paper.sources import ALL
from eldr.paper.style import CYCLE, panels

TRANSFORMATION = "idf"


def _pieces() -> dict[str, Piece]:
    return {
        source: Piece(layers, {"source": source, "transformation": TRANSFORMATION}, source) for source in ALL
    }


def _result(outputs: Outputs) -> Result:
    findings = [
        Finding(
            claim="held_out",
            source=f"{own['model']}, {ALL[name]}",
            evidence=own["evidence"],
            role=role_of(own),
            mean=own["held_out"]["kept"] - own["held_out"]["all"],
            over="requests that the selection had not seen",
        )
        for name, own in outputs.items()
    ]
    rows = [
        [
            f"{own['model']}, {ALL[name]}",
            f"{own['kept']} of {own['layers']}",
            f"{max(own['curve']):.3f}",
            f"{own['curve'][-1]:.3f}",
            f"{own['held_out']['kept']:.3f}",
            f"{own['held_out']['all']:.3f}",
        ]
        for name, own in outputs.items()
    ]
    columns = ["model", "layers kept", "rho, kept", "rho, all", "rho of others, kept", "rho of others, all"]
    title = "Chosen on one half of the requests; the last two columns are of the other half"
    return Result(findings, dict(outputs), [Table(title, columns, rows)])


def _draw(plt: Any, result: Result) -> Any:
    figure, (axes,) = panels(plt, 1, width=6.5, height=3.4)
    for color, (name, own) in zip(CYCLE, result.series.items(), strict=False):
        share = [100 * (n + 1) / own["layers"] for n in range(len(own["curve"]))]
        label = f"{own['model']}, {ALL[name]} ({own['evidence']})"
        axes.plot(share, own["curve"], color=color, label=label)
        axes.plot(share[own["kept"] - 1], max(own["curve"]), "*", color=color, ms=11)
    axes.set(xlabel="layers kept (% of the model's)", ylabel="rho", title="Layer by layer; star: N*")
    axes.legend(fontsize=7)
    return figure


def _why(result: Result) -> str:
    shares = [own["kept"] / own["layers"] for own in result.series.values()]
    return (
        f"Every curve peaks before all layers are in: {min(shares):.0%} to {max(shares):.0%} of them are "
        "kept. A peak cannot lie below the end of its own curve, so the comparison is made on requests that "
        "the selection had not seen. The notes on the paper give no number for this figure; only the "
        "direction is compared."
    )


register(
    Figure(
        id="fig8",
        title="Greedy layer selection",
        says="Added one by one, always the best next, layers raise rho up to N* and lower it after: a part "
        "of the layers is better than all of them.",
        claims={
            "held_out": Claim(
                "rho with the kept layers less rho with all", unit="", sign=1, slack=0.01, digits=3
            )
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: "The paper's models' own choices; how many layers are kept depends on the model.",
    )
)
