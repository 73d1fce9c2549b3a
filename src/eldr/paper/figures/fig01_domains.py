"""Figure 1: requests of one domain activate similar experts."""

from typing import Any

from eldr.paper.figure import Claim, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.locality import domains, language_domains
from eldr.paper.pieces import Piece
from eldr.paper.sources import RECORDED

QWEN3 = "qwen3-30b-a3b"
SHOWN = 0.9
"""Deviations beyond this are drawn alike: -90 % and less, +90 % and more."""


def _pieces() -> dict[str, Piece]:
    pieces = {source: Piece(domains, {"source": source}, source) for source in RECORDED}
    return {QWEN3: Piece(language_domains, {}, QWEN3), **pieces}


def _result(outputs: Outputs) -> Result:
    requests = {name: own for name, own in outputs.items() if "gap" in own}
    findings = [
        Finding(
            claim="gap",
            source=f"{own['model']}, {len(own['domains'])} {RECORDED[name]}",
            evidence=own["evidence"],
            role="direction",
            mean=own["gap"][0],
            low=own["gap"][1],
            high=own["gap"][2],
            over=f"95 % over {own['requests']} requests",
        )
        for name, own in requests.items()
    ]
    rows = [
        [own["model"], ", ".join(own["domains"]), f"{own['within']:.2f}", f"{own['between']:.2f}"]
        for own in requests.values()
    ]
    rows += [
        [own["model"], ", ".join(own["domains"]), "not recorded", f"{_mean_between(own['cosine']):.2f}"]
        for own in outputs.values()
        if "gap" not in own
    ]
    title = "Overlap: mean over layers of the cosine of two requests' (or languages') expert rates"
    table = Table(title, ["model", "domains", "within a domain", "between domains"], rows)
    return Result(findings, dict(outputs), [table])


def _mean_between(cosine: list[list[float]]) -> float:
    pairs = [value for row, own in enumerate(cosine) for value in own[:row]]
    return sum(pairs) / len(pairs)


def _draw(plt: Any, result: Result) -> Any:
    own = list(result.series.values())
    figure, axes = plt.subplots(len(own), 1, figsize=(7.5, 1.9 * len(own)), squeeze=False)
    for panel, source in zip(axes[:, 0], own, strict=True):
        image = panel.imshow(
            source["deviation"],
            cmap="PuOr_r",
            vmin=-SHOWN,
            vmax=SHOWN,
            aspect="auto",
            interpolation="nearest",
        )
        panel.set_yticks(range(len(source["domains"])), source["domains"], fontsize=7)
        panel.set_title(f"{source['model']}, layer {source['layer']} ({source['evidence']})")
        panel.grid(False)
    panel.set_xlabel("expert")
    figure.colorbar(image, ax=axes[:, 0], label="activation against the mean of the domains", extend="both")
    return figure


def _why(_: Result) -> str:
    return (
        "The paper shows heat maps without a number, so the direction is all that can be compared: requests "
        "of one domain are more alike than requests of two in every source. The layer that is drawn is the "
        "one in which domains differ as much as in the median layer of that model."
    )


register(
    Figure(
        id="fig1",
        title="Requests of one domain activate similar experts",
        says="Code, math, medical and law requests, and English, Chinese, Russian and French ones, each "
        "activate some experts much more than the others do, in all three models.",
        claims={
            "gap": Claim("overlap within a domain less overlap between domains", unit="", sign=1, digits=2)
        },
        pieces=_pieces,
        result=_result,
        draw=_draw,
        why=_why,
        change=lambda _: (
            "Decode choices of single requests of the paper's three models: `eldr calibrate` on a "
            "machine that serves them records what this figure needs."
        ),
    )
)
