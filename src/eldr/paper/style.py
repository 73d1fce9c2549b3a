"""How the plots look: one colour a policy everywhere, told apart by colour-blind readers too (Okabe and
Ito)."""

from collections.abc import Sequence
from typing import Any

from eldr.bench.plots import pyplot

POLICY_COLORS = {
    "round_robin": "#000000",
    "random": "#999999",
    "jsq": "#56B4E9",
    "p2c": "#0072B2",
    "domain_label": "#E69F00",
    "locality_band": "#D55E00",
}
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_SETTINGS = {
    "svg.hashsalt": "eldr",  # the same numbers give the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "savefig.dpi": 130,
}


def plotter() -> Any:
    """matplotlib.pyplot with the settings of the paper's plots. ConfigError where matplotlib is missing."""
    plt = pyplot()
    plt.rcParams.update(_SETTINGS)
    return plt


def policy_color(policy: str) -> str:
    """The colour of a policy."""
    return POLICY_COLORS[policy]


def panels(plt: Any, number: int, *, width: float = 3.4, height: float = 3.0, **options: Any) -> Any:
    """A figure of `number` panels in a row, and the panels."""
    figure, axes = plt.subplots(1, number, figsize=(width * number, height), squeeze=False, **options)
    return figure, list(axes[0])


def band(axes: Any, x: Sequence[float], spread: Sequence[Sequence[float]], **style: Any) -> Any:
    """A line through means with its interval shaded. spread: (mean, low, high) at each x."""
    mean, low, high = zip(*spread, strict=True)
    (line,) = axes.plot(x, mean, **style)
    axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, lw=0)
    return line


def bar(axes: Any, places: Sequence[float], spread: Sequence[Sequence[float]], **style: Any) -> None:
    """Bars with their intervals as whiskers. spread: (mean, low, high) of each."""
    mean, low, high = zip(*spread, strict=True)
    error = [
        [m - a for m, a in zip(mean, low, strict=True)],
        [b - m for m, b in zip(mean, high, strict=True)],
    ]
    axes.bar(places, mean, yerr=error, error_kw={"lw": 0.9, "capsize": 2, "ecolor": "#333333"}, **style)


def paper_range(axes: Any, low: float, high: float, label: str = "paper") -> None:
    """Shade what the paper says across a plot."""
    axes.axhspan(low, high, color="#009E73", alpha=0.15, lw=0, zorder=0, label=label)
    if low == high:
        axes.axhline(low, color="#009E73", lw=1, ls="--", zorder=0)
