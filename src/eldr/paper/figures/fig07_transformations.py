"""Figure 7: the quality rho of six candidate transformations."""

from collections.abc import Mapping
from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.gated import gated_transformations
from eldr.paper.measure.signatures import transformations
from eldr.paper.pieces import Piece
from eldr.paper.roles import role_of
from eldr.paper.sources import ALL, RECORDED, SYNTHETIC
from eldr.paper.style import CYCLE, panels

IDF = "idf"


def _pieces() -> dict[str, Piece]:
    recorded = {source: Piece(transformations, {"source": source}, source) for source in RECORDED}
    made = {
        source: Piece(
            gated_transformations, dict(zip(("model", "workload"), source.split("/"), strict=True)), source
        )
        for source in SYNTHETIC
    }
    return {**recorded, **made}


def _result(outputs: Outputs) -> Result:
    findings = []
    for name, own in outputs.items():
        counted, gated = _best(own["rho"], gates=False), _best(own["rho"], gates=True)
        findings.append(_finding("others", own, ALL[name], counted))
        if gated:
            findings.append(_finding("gates", own, ALL[name], gated))
    names = list(dict.fromkeys(name for own in outputs.values() for name in own["rho"]))
    rows = [
        [
            own["model"],
            ALL[source],
            str(own["requests"]),
            *(_cell(own["rho"].get(name)) for name in names),
        ]
        for source, own in outputs.items()
    ]
    table = Table("rho, all layers", ["model", "domains", "requests", *names], rows)
    return Result(findings, dict(outputs), [table])


def _best(rho: Mapping[str, float | None], *, gates: bool) -> dict[str, float]:
    """The transformations to hold IDF against: of counts, or of gate probabilities."""
    return {
        name: value
        for name, value in rho.items()
        if value is not None and name != IDF and name.startswith("gates") == gates
    }


def _finding(claim: str, own: Mapping[str, Any], domains: str, others: Mapping[str, float]) -> Finding:
    best = max(others, key=lambda name: others[name])
    return Finding(
        claim=claim,
        source=f"{own['model']}, {domains}",
        evidence=own["evidence"],
        role=role_of(own),
        mean=own["rho"][IDF] - others[best],
        over=f"the best other is {best}",
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _draw(plt: Any, result: Result) -> Any:
    figure, (axes,) = panels(plt, 1, width=7.5, height=3.2)
    names = list(dict.fromkeys(name for own in result.series.values() for name in own["rho"]))
    width = 0.8 / len(result.series)
    for place, (source, own) in enumerate(result.series.items()):
        values = [own["rho"].get(name) or 0.0 for name in names]
        at = [n + (place + 0.5) * width - 0.4 for n in range(len(names))]
        label = f"{own['model']}, {ALL[source]} ({own['evidence']})"
        axes.bar(at, values, width, color=CYCLE[place % len(CYCLE)], label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="rho (Spearman)", title="Signature similarity against decode overlap")
    axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return figure


def _why(result: Result) -> str:
    lost = [finding.source for finding in result.findings if finding.claim == "others" and finding.mean < 0]
    gates = [finding.mean for finding in result.findings if finding.claim == "gates"]
    said = f"Against the best of gate probabilities (model): {min(gates):+.3f} to {max(gates):+.3f}. "
    if not lost:
        return said + "IDF-weighted counts come first on every source, as in the paper."
    return said + (
        f"IDF-weighted counts do not come first on {'; '.join(lost)}. IDF weighs an expert by how few "
        "requests use it at all, and with few experts or long prompts nearly every request uses nearly every "
        "expert, so that the weights become small and noisy. `eldr fit` therefore measures rho and takes the "
        "best."
    )


register(
    Figure(
        id="fig7",
        title="Quality of six transformations",
        says="Of top-k counts and gate probabilities, each raw, flattened (log, binary) or IDF-weighted, "
        "IDF-weighted counts have the highest rho, and discrete counts are better than continuous "
        "probabilities.",
        claims={
            "others": Claim(
                "rho of IDF counts less the best other transformation of counts",
                unit="",
                sign=1,
                slack=0.01,
                digits=3,
            ),
            "gates": Claim(
                "rho of IDF counts less the best of gate probabilities", unit="", sign=1, slack=0.01, digits=3
            ),
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: (
            "More experts and shorter prompts: then an expert's absence from a prompt says something. "
            "Gate probabilities of a real model would be needed for the continuous three."
        ),
    )
)
