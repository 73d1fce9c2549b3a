"""Figure 3: a request's prefill activation foretells its decode activation."""

from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.locality import prediction
from eldr.paper.pieces import Piece
from eldr.paper.roles import role_of
from eldr.paper.sources import ALL
from eldr.paper.style import CYCLE

COLUMNS = 5
LIMIT = 4.0
"""Activations beyond this many times the mean are not drawn."""


def _pieces() -> dict[str, Piece]:
    return {source: Piece(prediction, {"source": source}, source) for source in ALL}


def _result(outputs: Outputs) -> Result:
    findings = [
        Finding(
            claim="pooled",
            source=f"{own['model']}, {ALL[name]}",
            evidence=own["evidence"],
            role=role_of(own, fitted=True),
            mean=own["pooled"],
            over=f"{min(own['by_domain'].values()):.2f} to {max(own['by_domain'].values()):.2f} by domain",
        )
        for name, own in outputs.items()
    ]
    rows = [
        [
            own["model"],
            f"{own['by_request']:.2f}",
            ", ".join(f"{d} {r:.2f}" for d, r in own["by_domain"].items()),
        ]
        for own in outputs.values()
    ]
    table = Table("Correlations otherwise", ["model", "single requests (median)", "by domain"], rows)
    return Result(findings, dict(outputs), [table])


def _draw(plt: Any, result: Result) -> Any:
    lines = -(-len(result.series) // COLUMNS)
    figure, axes = plt.subplots(lines, COLUMNS, figsize=(2.6 * COLUMNS, 2.8 * lines), squeeze=False)
    for spare in axes.flat[len(result.series) :]:
        spare.set_visible(False)
    for panel, (name, own) in zip(axes.flat, result.series.items(), strict=False):
        panel.scatter(*zip(*own["points"], strict=True), s=4, alpha=0.5, lw=0, color=CYCLE[0])
        panel.plot([0, LIMIT], [0, LIMIT], color="#666666", lw=0.8, ls="--")
        panel.set(xlim=(0, LIMIT), ylim=(0, LIMIT), xlabel="prefill / mean of domains")
        panel.set_title(
            f"{own['model']}\n{ALL[name]} ({own['evidence']}), r = {own['pooled']:.2f}", fontsize=7
        )
    axes[0][0].set_ylabel("decode / mean of domains")
    return figure


def _why(result: Result) -> str:
    lowest = min(result.findings, key=lambda finding: finding.mean)
    return (
        "A point is one expert of one layer in one domain: its share of the domain's choices over the mean "
        "share of all domains, in prefill and in decode. So what all domains have in common does not help. "
        f"The lowest value is that of {lowest.source} ({lowest.mean:.2f}). Where no prompt was recorded, the "
        "beginning of the text stands for it: half of a text (DeepSeek-V2-Lite), or the first 64 tokens of "
        "an answer (GPT-OSS-20B), which is nearer to the rest than a question would be."
    )


register(
    Figure(
        id="fig3",
        title="Prefill activation foretells decode activation",
        says="An expert's activation in prefill and in decode, normalised and pooled over domains, correlate "
        "with 0.70 to 0.92.",
        claims={
            "pooled": Claim("correlation of prefill and decode activation", 0.70, 0.92, "", sign=1, digits=2)
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: (
            "Prefill and decode choices of the same requests from a large model; no public set has both, "
            "`eldr calibrate` records them."
        ),
    )
)
