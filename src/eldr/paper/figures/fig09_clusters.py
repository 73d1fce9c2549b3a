"""Figure 9: signatures and centroids in two dimensions."""

from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.signatures import clusters
from eldr.paper.pieces import Piece
from eldr.paper.roles import role_of
from eldr.paper.sources import ALL
from eldr.paper.style import CYCLE

WORKERS = 16
TRANSFORMATION = "idf"
COLUMNS = 3


def _pieces() -> dict[str, Piece]:
    settings = {"transformation": TRANSFORMATION, "workers": WORKERS}
    return {source: Piece(clusters, {"source": source, **settings}, source) for source in ALL}


def _result(outputs: Outputs) -> Result:
    findings = [
        Finding(
            claim="purity",
            source=f"{own['model']}, {ALL[name]}",
            evidence=own["evidence"],
            role=role_of(own),
            mean=100 * (own["purity"] - own["by_chance"]),
            over=f"{own['purity']:.0%}, by chance {own['by_chance']:.0%}",
        )
        for name, own in outputs.items()
    ]
    rows = [
        [
            f"{own['model']}, {ALL[name]}",
            str(sum(own["sizes"])),
            f"{min(own['sizes'])} to {max(own['sizes'])}",
            f"{own['explained'][0]:.0%}, {own['explained'][1]:.0%}",
        ]
        for name, own in outputs.items()
    ]
    columns = ["model", "requests", "cluster sizes", "variance along the two axes"]
    return Result(findings, dict(outputs), [Table("", columns, rows)])


def _draw(plt: Any, result: Result) -> Any:
    sources = list(result.series.items())
    lines = -(-len(sources) // COLUMNS)
    figure, axes = plt.subplots(
        lines,
        min(COLUMNS, len(sources)),
        figsize=(3.4 * min(COLUMNS, len(sources)), 3.3 * lines),
        squeeze=False,
    )
    for spare in axes.flat[len(sources) :]:
        spare.set_visible(False)
    for panel, (name, own) in zip(axes.flat, sources, strict=False):
        for color, label in zip(CYCLE * 3, dict.fromkeys(own["labels"]), strict=False):
            points = [p for p, one in zip(own["points"], own["labels"], strict=True) if one == label]
            panel.scatter(*zip(*points, strict=True), s=8, lw=0, alpha=0.7, color=color, label=label)
        panel.scatter(
            *zip(*own["centroids"], strict=True), marker="*", s=90, color="black", ec="white", lw=0.6
        )
        panel.set_title(f"{own['model']}, {ALL[name]} ({own['evidence']})", fontsize=7)
        panel.set(xlabel="1st component", ylabel="2nd component")
        panel.legend(fontsize=6, markerscale=1.5)
    return figure


def _why(result: Result) -> str:
    least = min(result.series.values(), key=lambda own: own["purity"])
    return (
        f"{WORKERS} balanced clusters were fitted, without labels; stars are their centroids. Most requests "
        f"of a cluster are of one domain: {least['purity']:.0%} of the requests at the least "
        f"({least['model']}). The paper shows the picture without a number, so only the direction is "
        "compared."
    )


register(
    Figure(
        id="fig9",
        title="Signatures and centroids",
        says="On the plane of the two first principal components, signatures of one domain lie together, and "
        "balanced K-means puts its centroids among them.",
        claims={
            "purity": Claim(
                "requests in a cluster that is mostly of their domain, less the share by chance",
                unit="points",
                sign=1,
                digits=0,
            )
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: "Nothing that matters: where domains overlap in the plot they overlap in the model.",
    )
)
