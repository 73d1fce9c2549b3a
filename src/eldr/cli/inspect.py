"""`eldr inspect`: what is in a profile or a calibration set."""

from collections import Counter
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eldr.bench.profile_plots import plot_profile
from eldr.cli.tables import composition, figure
from eldr.errors import ConfigError
from eldr.profile.artifact import Profile, ProfileInfo
from eldr.profile.dataset import CalibrationSet, is_calibration

console = Console(highlight=False)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--plot",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw a profile into this folder: its layer curve, and its clusters with --calibration.",
)
@click.option("--calibration", type=click.Path(path_type=Path), help="The set the profile was fitted to.")
def command(file: Path, folder: Path | None, calibration: Path | None) -> None:
    """Describe a profile or a calibration set, whichever FILE is."""
    if _is_calibration(file):
        if folder is not None:
            raise click.UsageError(f"--plot draws profiles; {file} is a calibration set")
        _show(file.name, calibration_rows(CalibrationSet.load(file)))
        return
    profile = Profile.load(file)
    _show(file.name, profile_rows(profile))
    if folder is not None:
        _plot(profile, calibration, folder)


def _is_calibration(file: Path) -> bool:
    try:
        return is_calibration(file)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}; name a profile or calibration set"
        ) from None


def _show(name: str, rows: dict[str, str]) -> None:
    table = Table(title=escape(name), show_header=False)
    for key, value in rows.items():
        table.add_row(key, value)
    console.print(table)


def _plot(profile: Profile, calibration: Path | None, folder: Path) -> None:
    recorded = None if calibration is None else CalibrationSet.load(calibration)
    files = plot_profile(profile, recorded, folder)
    if not files:
        raise ConfigError(
            "nothing to draw: the profile's layers were given, not selected; name its calibration set with "
            "--calibration to draw its clusters"
        )
    console.print("drawn: " + ", ".join(map(str, files)), soft_wrap=True, markup=False)


def profile_rows(profile: Profile) -> dict[str, str]:
    """Return what to say of a profile, by name."""
    info, kept = profile.info, profile.kept_layers
    between = profile.centroids @ profile.centroids.T
    pairs = between[np.triu_indices(profile.workers, 1)]
    return {
        "kind": f"profile, format {info.format}",
        "model": escape(info.model),
        "routing": f"{info.layers} layers x {info.experts} experts, top-{info.top_k} ({info.fingerprint})",
        "transformation": escape(info.transformation),
        "rho": figure(info.rho, 3),
        "tau": f"{info.tau:g}",
        "kept layers": f"{len(kept)} of {info.layers}: {', '.join(map(str, kept))}",
        "layers as selected": _curve(info),
        "workers": str(profile.workers),
        "cluster sizes": ", ".join(map(str, profile.cluster_sizes)),
        "cosine between centroids": _range(pairs) if len(pairs) else "-",
        "calibration requests": str(info.calibration_requests),
        "made": f"{escape(info.created_at)} by eldr {escape(info.eldr_version)}, seed {info.seed}",
    }


def calibration_rows(calibration: CalibrationSet) -> dict[str, str]:
    """Return what to say of a calibration set, by name."""
    used = np.count_nonzero(calibration.prefill_counts, axis=2)
    routing = f"{calibration.layers} layers x {calibration.experts} experts, top-{calibration.top_k}"
    return {
        "kind": "calibration set",
        "model": escape(calibration.model),
        "routing": routing,
        "requests": str(len(calibration)),
        "labels": composition(Counter(calibration.label.tolist())),
        "prompt tokens": _range(calibration.prompt_tokens),
        "output tokens": _range(calibration.output_tokens),
        "experts a prompt uses in a layer": _range(used),
        "made": f"by eldr {escape(calibration.eldr_version)}",
    }


def _curve(info: ProfileInfo) -> str:
    """Each layer in the order of its choice, with rho after it."""
    steps = zip(info.layer_order, info.layer_rho, strict=True)
    return ", ".join(f"{layer} ({rho:.3f})" for layer, rho in steps) or "given, not selected"


def _range(values: npt.NDArray[np.generic]) -> str:
    digits = 3 if values.dtype.kind == "f" else 0
    low, middle, high = np.percentile(values.astype(np.float64), (0, 50, 100))
    return f"{low:.{digits}f} to {high:.{digits}f}, median {middle:.{digits}f}"
