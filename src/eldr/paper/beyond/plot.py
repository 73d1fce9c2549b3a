"""The plot of the suite: median and p99 of each case under the band and the default."""

from pathlib import Path

from eldr.files import replacing
from eldr.paper.beyond.cases import BAND, JSQ, SOFT
from eldr.paper.beyond.results import Saved
from eldr.paper.style import panels, plotter, policy_color

COLORS = {JSQ: policy_color(JSQ), BAND: policy_color(BAND), SOFT: "#009E73"}
"""Of these policies in all studies of the simulator."""

FIELDS = {"p50": "median TPOT", "p99": "p99 TPOT"}


def draw(saved: Saved, path: Path) -> None:
    """Write a PNG. Whiskers are 95 % intervals over seeds."""
    plt = plotter()
    height = 0.32 * len(saved.rows) + 1.3
    figure, axes = panels(plt, len(FIELDS), width=4.6, height=height, sharey=True)
    for panel, (field, title) in zip(axes, FIELDS.items(), strict=True):
        for number, rule in enumerate((BAND, SOFT)):
            spreads = [getattr(row.rules[rule], field) for row in saved.rows]
            places = [place + 0.36 * number - 0.18 for place in range(len(spreads))]
            means = [spread.mean for spread in spreads]
            half = [(spread.high - spread.low) / 2 for spread in spreads]
            style = {"color": COLORS[rule], "label": rule, "error_kw": {"lw": 0.8}}
            panel.barh(places, means, 0.34, xerr=half, **style)
        panel.axvline(0, color="black", lw=0.6)
        panel.set(title=title, xlabel="% against JSQ")
    axes[0].set_yticks(range(len(saved.rows)), [row.title for row in saved.rows], fontsize=7)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=2, loc="outside lower center")
    with replacing(path) as file:
        figure.savefig(file, format="png")
    plt.close(figure)
