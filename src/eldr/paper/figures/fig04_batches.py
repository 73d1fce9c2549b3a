"""Figure 4: batches of one domain activate fewer experts than mixed ones."""

from collections.abc import Mapping
from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, register
from eldr.paper.measure.locality import batches, language_batches
from eldr.paper.pieces import Piece
from eldr.paper.roles import role_of
from eldr.paper.sources import ALL, claim_of
from eldr.paper.style import CYCLE, MARKERS, panels, paper_range

SIZES = (8, 16, 32, 64, 128)
COMPARED = ("32", "64", "128")
"""The paper's batch sizes."""

DRAWS = 120
QWEN3 = "qwen3-30b-a3b"


def _pieces() -> dict[str, Piece]:
    own = {
        source: Piece(batches, {"source": source, "sizes": SIZES, "draws": DRAWS}, source) for source in ALL
    }
    return {QWEN3: Piece(language_batches, {"sizes": SIZES}, QWEN3), **own}


def _result(outputs: Outputs) -> Result:
    findings = [
        _finding(name, own, size, size_own["change"])
        for name, own in outputs.items()
        for size, size_own in own["sizes"].items()
        if size in COMPARED
    ]
    return Result(findings, dict(outputs))


def _finding(name: str, own: Mapping[str, Any], size: str, change: list[float]) -> Finding:
    domains = own["sizes"][size]["domains"]
    mean, low, high = change
    kind = "languages, prompt tokens" if name == QWEN3 else ALL[name]
    return Finding(
        claim=claim_of(kind),
        source=f"{own['model']}, {domains} {kind}, batch {size}",
        evidence=own["evidence"],
        role=role_of(own, fitted=True),
        mean=mean,
        low=None if name == QWEN3 else low,
        high=None if name == QWEN3 else high,
        over=f"{low:+.1f} to {high:+.1f} % by language" if name == QWEN3 else "95 % over drawn batches",
    )


def _draw(plt: Any, result: Result) -> Any:
    figure, axes = panels(plt, 2, width=4.2, height=3.4, sharey=True)
    for panel, key in zip(axes, CLAIMS, strict=True):
        own = {name: s for name, s in result.series.items() if claim_of(ALL.get(name, "languages")) == key}
        for source, color, marker in zip(own.values(), CYCLE, MARKERS, strict=False):
            sizes = [int(size) for size in source["sizes"]]
            change = [size["change"] for size in source["sizes"].values()]
            error = [[m - a for m, a, _ in change], [b - m for m, _, b in change]]
            label = f"{source['model']} ({source['evidence']})"
            panel.errorbar(
                sizes,
                [m for m, *_ in change],
                error,
                color=color,
                marker=marker,
                ms=4,
                capsize=2,
                label=label,
            )
        claim = CLAIMS[key]
        assert claim.low is not None
        assert claim.high is not None
        paper_range(panel, claim.low, claim.high)
        panel.set_xscale("log", base=2)
        panel.set_xticks(SIZES, [str(size) for size in SIZES])
        panel.set(xlabel="batch (requests)", title=key.capitalize())
        panel.axhline(0, color="black", lw=0.6)
        panel.legend(fontsize=6.5)
    axes[0].set_ylabel("active experts, one domain against mixed (%)")
    return figure


def _why(result: Result) -> str:
    judged = [f for f in result.findings if f.role == "number" and f.claim == "tasks"]
    said = (
        "GPT-OSS-20B has 32 experts, so that a batch of 32 requests activates nearly all of them whatever it "
        "holds; DeepSeek-V2-Lite has 64. Both gains are smaller than those of 128 experts for that reason. "
        if judged and max(f.mean for f in judged) > -15
        else ""
    )
    return (
        said
        + "A size is shown where at least two domains have as many requests. For Qwen3-30B-A3B only sums "
        "over the prompts of a language are public: its batches are made of independent tokens, and its "
        "questions are the same in all languages."
    )


CLAIMS = {
    "tasks": Claim("active experts, one task's batch against a mixed one, batch 32 to 128", -21, -17),
    "languages": Claim("active experts, one language's batch against a mixed one, batch 32 to 128", -10, -3),
}

register(
    Figure(
        id="fig4",
        title="Batches of one domain activate fewer experts",
        says="At batch 32, 64 and 128 a batch of one domain activates 17 to 21 % fewer experts a step than a "
        "mixed one on tasks, and 3 to 10 % fewer on languages.",
        claims=CLAIMS,
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: (
            "Decode choices of single requests of a model with 128 experts, in batches up to 128 of one task."
        ),
    )
)
