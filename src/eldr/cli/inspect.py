"""`eldr inspect`: what is in a profile or a calibration set."""

from collections import Counter
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eldr.cli.tables import composition, figure
from eldr.errors import ConfigError
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet

console = Console(highlight=False)

_ZIP = b"PK\x03\x04"  # an .npz is a zip archive


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Describe a profile or a calibration set, whichever FILE is."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_ZIP))
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}; name a profile or calibration set"
        ) from None
    rows = calibration_rows(CalibrationSet.load(file)) if start == _ZIP else profile_rows(Profile.load(file))
    table = Table(title=escape(file.name), show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def profile_rows(profile: Profile) -> dict[str, str]:
    """Return what to say of a profile, by name."""
    info = profile.info
    between = profile.centroids @ profile.centroids.T
    pairs = between[np.triu_indices(profile.workers, 1)]
    return {
        "kind": f"profile, format {info.format}",
        "model": escape(info.model),
        "routing": f"{info.layers} layers x {info.experts} experts, top-{info.top_k} ({info.fingerprint})",
        "transformation": escape(info.transformation),
        "rho": figure(info.rho, 3),
        "tau": f"{info.tau:g}",
        "kept layers": f"{len(profile.kept_layers)} of {info.layers}",
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


def _range(values: npt.NDArray[np.generic]) -> str:
    digits = 3 if values.dtype.kind == "f" else 0
    low, middle, high = np.percentile(values.astype(np.float64), (0, 50, 100))
    return f"{low:.{digits}f} to {high:.{digits}f}, median {middle:.{digits}f}"
