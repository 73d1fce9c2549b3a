"""Writes the tables of docs/moe-layer.md from the reports that `eldr bench moe-layer` kept.

python -m eldr.bench.moe_layer_page docs/bench docs/moe-layer.md
"""

from pathlib import Path

import click
import msgspec

from eldr.bench.documents import replace_part
from eldr.bench.moe_layer import CLOCKS, LayerRun, MoeLayerReport
from eldr.errors import ConfigError
from eldr.program import EXISTING_FOLDER, run

HEAD = (
    "| model | dtype | an expert | weights there | fixed | active | token | R2 | error on unseen batches |",
    "|---|---|---|---|---|---|---|---|---|",
)


def reports(folder: Path) -> dict[str, MoeLayerReport]:
    """Every report in a folder by its name. ConfigError where there is none."""
    paths = sorted(folder.glob("moe_layer_*.json"))
    if not paths:
        raise ConfigError(f"no report in {folder}; make one with `eldr bench moe-layer --out {folder}`")
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=MoeLayerReport) for path in paths}


def section(name: str, report: MoeLayerReport) -> str:
    """One device."""
    cache = "" if report.cache_mib is None else f"; last-level cache {report.cache_mib:.0f} MiB"
    parts = [f"### {report.device}", f"Timed: {CLOCKS[report.kind]}{cache}.", "\n".join(_table(report))]
    parts += [f"- {run.model}: {_ratios(run)}" for run in report.runs if any(run.fig2.values())]
    return "\n\n".join([*parts, f"![Time by active experts](bench/{name}.svg)"])


def _table(report: MoeLayerReport) -> list[str]:
    return [*HEAD, *(_row(run) for run in report.runs)]


def _row(run: LayerRun) -> str:
    cells = [
        run.model,
        run.dtype,
        f"{run.expert_mib:.1f} MiB",
        f"{run.resident_gib:.1f} GiB",
        *(_us(value) for value in (run.fixed_us, run.active_us, run.token_us)),
        f"{run.r2:.3f}",
        f"{run.cv_error:.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratios(run: LayerRun) -> str:
    return "; ".join(f"{name}: x {ratio:.2f}" for name, ratio in run.fig2.items() if ratio is not None)


@click.command()
@click.argument("folder", type=EXISTING_FOLDER)
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(folder: Path, page: Path) -> None:
    """Put what is in FOLDER into PAGE."""
    replace_part(
        page, "devices", "\n\n".join(section(name, report) for name, report in reports(folder).items())
    )


if __name__ == "__main__":
    run(main)
