"""`eldr fit`: from a calibration set to the profile that `eldr serve` routes by."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eldr.cli.tables import composition, figure
from eldr.profile.active import ActiveExperts
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet
from eldr.profile.fit import AUTO, FitReport, fit_profile
from eldr.signature import TRANSFORMATIONS

console = Console(highlight=False)


@click.command()
@click.argument("calibration", metavar="CAL.npz", type=click.Path(path_type=Path))
@click.option("--workers", required=True, type=click.IntRange(1), help="Decode workers: one centroid each.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The profile to write (.safetensors).",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the clustering.")
@click.option(
    "--transformation",
    default=AUTO,
    show_default=True,
    type=click.Choice([AUTO, *TRANSFORMATIONS.names()]),
    help="From counts to signatures; auto takes the one with the best rho.",
)
@click.option("--tau", default=0.1, show_default=True, type=click.FloatRange(0, 2), help="Band width.")
def command(calibration: Path, workers: int, out: Path, seed: int, transformation: str, tau: float) -> None:
    """Fit a profile for a number of decode workers to a calibration set."""
    recorded = CalibrationSet.load(calibration)
    profile, report = fit_profile(recorded, workers, seed=seed, transformation=transformation, tau=tau)
    profile.save(out)
    show(profile, report)
    console.print(
        f"{out}: {len(recorded)} requests of {recorded.model}, clustered in {report.clustering_s:.2f} s "
        f"(transformation chosen in {report.selection_s:.2f} s)",
        soft_wrap=True,
    )


def show(profile: Profile, report: FitReport) -> None:
    """Print what the fit found out."""
    console.print(_rho_table(report, profile.info.transformation))
    console.print(_cluster_table(profile, report))
    console.print(_active_table(report.active))
    if report.unsigned:
        console.print(f"{report.unsigned} requests give no signature and are in no cluster")


def _rho_table(report: FitReport, chosen: str) -> Table:
    table = Table("transformation", "rho", "", title="Signature similarity against decode overlap (Spearman)")
    for name, value in report.rho.items():
        table.add_row(name, figure(value, 3), "chosen" if name == chosen else "")
    return table


def _cluster_table(profile: Profile, report: FitReport) -> Table:
    table = Table("cluster", "requests", "labels", title="Clusters, one a decode worker")
    for cluster, labels in enumerate(report.compositions):
        table.add_row(str(cluster), str(profile.cluster_sizes[cluster]), composition(labels))
    return table


def _active_table(active: tuple[ActiveExperts, ...]) -> Table:
    title = "Expected active experts a decode step and layer, on this calibration set"
    table = Table("batch", "mixed", "by cluster", "change", title=title)
    for row in active:
        change = None if row.mixed is None or row.by_cluster is None else row.by_cluster / row.mixed - 1
        table.add_row(
            str(row.batch),
            figure(row.mixed, 1),
            figure(row.by_cluster, 1),
            "-" if change is None else f"{change:+.1%}",
        )
    return table
