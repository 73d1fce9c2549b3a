"""`eldr fit`: from a calibration set to the profile that `eldr serve` routes by."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eldr.cli.gain import find_hardware, gpu_costs, step_gains, verdict
from eldr.cli.tables import change, composition, figure
from eldr.profile.active import ActiveExperts
from eldr.profile.artifact import Profile
from eldr.profile.choice import ALL, AUTO, GREEDY, Layers
from eldr.profile.dataset import CalibrationSet
from eldr.profile.fit import FitReport, fit_profile
from eldr.signature import TRANSFORMATIONS

console = Console(highlight=False)


def _parse_layers(ctx: click.Context, param: click.Parameter, value: str) -> Layers:
    if value in (GREEDY, ALL):
        return value
    try:
        return [int(layer) for layer in value.split(",")]
    except ValueError:
        message = f"{value!r} is neither {GREEDY}, {ALL} nor layers such as 0,3,5"
        raise click.BadParameter(message, ctx, param) from None


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
@click.option(
    "--layers",
    default=GREEDY,
    show_default=True,
    callback=_parse_layers,
    help="greedy keeps those that foretell decode best; or all; or a list such as 0,3,5.",
)
@click.option("--tau", default=0.1, show_default=True, type=click.FloatRange(0, 2), help="Band width.")
@click.option("--gpu", help="Predict TPOT on this GPU, such as h200, h100, a100 or mi300x.")
def command(
    calibration: Path,
    workers: int,
    out: Path,
    seed: int,
    transformation: str,
    layers: Layers,
    tau: float,
    gpu: str | None,
) -> None:
    """Fit a profile for a number of decode workers to a calibration set."""
    if gpu is not None:
        gpu_costs(gpu)  # a name that is unknown is told before the work
    recorded = CalibrationSet.load(calibration)
    profile, report = fit_profile(
        recorded, workers, seed=seed, transformation=transformation, layers=layers, tau=tau
    )
    show(profile, report)
    say(gain_lines(recorded, profile, report, gpu))
    profile.save(out)
    say(
        [
            f"{out}: {len(recorded)} requests of {recorded.model}; transformation and layers chosen in "
            f"{report.selection_s:.2f} s, clustered in {report.clustering_s:.2f} s",
            f"Route by it: eldr serve --profile {out} ... (before {workers} decode workers)",
        ]
    )


def say(lines: list[str]) -> None:
    """Print sentences, wrapped by the terminal only."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def show(profile: Profile, report: FitReport) -> None:
    """Print what the fit found out."""
    info = profile.info
    console.print(_rho_table(report, info.transformation))
    kept = ", ".join(map(str, profile.kept_layers))
    say([f"Layers kept: {len(profile.kept_layers)} of {info.layers} ({kept}), rho {figure(info.rho, 3)}"])
    console.print(_cluster_table(profile, report))
    if report.unsigned:
        say([f"{report.unsigned} requests give no signature and are in no cluster"])


def gain_lines(
    calibration: CalibrationSet, profile: Profile, report: FitReport, gpu: str | None
) -> list[str]:
    """Print expected active experts, with predicted TPOT for a GPU, and return what to say of them."""
    active = _told(report.active, float(profile.cluster_sizes.mean()))
    if all(row.change is None for row in active):
        console.print(_active_table(active, {}))
        return [
            "Too few requests with decode counts to tell what grouping gains; "
            "record more, or fit for fewer workers."
        ]
    if gpu is None:
        console.print(_active_table(active, {}))
        return ["Name your GPU with --gpu to see what that does to TPOT."]
    hardware = find_hardware(gpu, profile.info)
    context = float((calibration.prompt_tokens + calibration.output_tokens / 2).mean())
    gains = step_gains(hardware, active, context)
    console.print(_active_table(active, {g.batch: [f"{g.mixed_ms:.2f}", change(g.change)] for g in gains}))
    cost = hardware.cost
    borrowed = "" if hardware.own else f", its share of active experts being that of {calibration.model}"
    return [
        f"TPOT by the step cost of {cost.model} on {cost.gpu}{borrowed}, {context:.0f} tokens of context a "
        "request; what is grouped perfectly here, a router groups less where it has to balance load.",
        verdict(gains, active, profile.info.experts),
    ]


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


def _told(active: Sequence[ActiveExperts], cluster_requests: float) -> list[ActiveExperts]:
    """Leave out what batches by cluster gain where they hold more requests than a cluster has on average:
    that would promise more than the requests can show.
    """
    return [replace(row, by_cluster=None) if row.batch > cluster_requests else row for row in active]


def _active_table(active: Sequence[ActiveExperts], tpot: dict[int, list[str]]) -> Table:
    title = (
        "Expected active experts a decode step and layer, of requests that the clusters were not fitted to"
    )
    columns = [
        "batch",
        "mixed",
        "by cluster",
        "change",
        *(["TPOT mixed (ms)", "TPOT change"] if tpot else []),
    ]
    table = Table(*columns, title=title)
    for row in active:
        cells = [str(row.batch), figure(row.mixed, 1), figure(row.by_cluster, 1), change(row.change)]
        table.add_row(*cells, *(tpot.get(row.batch, ["-", "-"]) if tpot else ()))
    return table
