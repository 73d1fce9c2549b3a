"""Plot and table of the K-means benchmark, from what it kept."""

from pathlib import Path
from typing import Any

from eldr.bench.documents import replace_part
from eldr.bench.plots import CYCLE, OURS, pyplot, save_figure

NAMES = {"eldr": "ELDR", "lloyd": "Lloyd, then balanced", "k-means-constrained": "k-means-constrained"}


def write_plot(report: dict[str, Any], path: Path) -> None:
    """CPU time and objective by method, over rows x clusters."""
    plt = pyplot()
    figure, (time, quality) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    for method, color in zip(NAMES, (OURS, CYCLE[5], CYCLE[0]), strict=True):
        done = [row for row in report["rows"] if "cpu_s" in row.get(method, {})]
        style = {"color": color, "label": NAMES[method], "marker": "o", "ls": ""}
        time.loglog([r["n"] * r["k"] for r in done], [r[method]["cpu_s"] for r in done], **style)
        both = [row for row in done if "cpu_s" in row["eldr"]]
        ratios = [r[method]["cosine"] / r["eldr"]["cosine"] - 1 for r in both]
        quality.semilogx([r["n"] * r["k"] for r in both], [100 * ratio for ratio in ratios], **style)
    time.set(xlabel="rows x clusters", ylabel="CPU time (s)")
    quality.set(xlabel="rows x clusters", ylabel="sum of cosines against ELDR (%)")
    time.legend(frameon=False, fontsize=9)
    for axes in (time, quality):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def write_table(report: dict[str, Any], page: Path) -> None:
    """Put the table into the part `kmeans` of a document."""
    replace_part(page, "kmeans", table(report))


def table(report: dict[str, Any]) -> str:
    """Return the benchmark as Markdown."""
    heads = "".join(f" {name} |" for name in NAMES.values())
    lines = [
        f"| rows | clusters |{heads} by prices, s | exact, s | gap, % | gap at most, % |",
        "|---:|---:|" + "---:|" * (len(NAMES) + 4),
    ]
    for row in report["rows"]:
        cells = [_run(row.get(method, {})) for method in NAMES]
        cells += [_figure(row["prices"].get(name), 1, 2) for name in ("near_s", "exact_s")]
        cells += [_figure(row["prices"].get(name), 100, 3) for name in ("gap", "bound")]
        lines.append(f"| {row['n']:,} | {row['k']} | " + " | ".join(cells) + " |")
    machine = report["machine"]
    lines.append(f"\nCPU time on {machine['processor']}, {report['starts']} starts each.")
    return "\n".join(lines)


def _run(found: dict[str, Any]) -> str:
    if "limit_s" in found:
        return f"not in {found['limit_s']} s"
    return f"{found['cosine']:.4f}, {found['cpu_s']:.1f} s" if found else "-"


def _figure(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"
