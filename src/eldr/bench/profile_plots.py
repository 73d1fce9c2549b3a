"""Plots of a profile: its layer curve (the paper's Fig. 8) and its clusters in a plane (Fig. 9)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eldr.bench.plots import CYCLE, OURS, pyplot, save_figure, signature_map
from eldr.bench.signature_map import project
from eldr.errors import CalibrationError
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet


def plot_profile(profile: Profile, calibration: CalibrationSet | None, folder: Path) -> list[Path]:
    """Write layers.png where the profile's layers were selected, clusters.png with a calibration set.

    Returns the files. ConfigError where matplotlib is missing, PayloadError for a set of another model.
    """
    makers: dict[str, Callable[[Any], Any]] = {}
    if profile.info.layer_order:
        makers["layers.png"] = lambda plt: layer_curve(plt, profile)
    if calibration is not None:
        makers["clusters.png"] = lambda plt: cluster_map(plt, profile, calibration)
    plt = pyplot()
    for name, make in makers.items():
        save_figure(make(plt), folder / name)
    return [folder / name for name in makers]


def layer_curve(plt: Any, profile: Profile) -> Any:
    """rho after each layer that the greedy selection added, and where it is highest."""
    order, rho = profile.info.layer_order, profile.info.layer_rho
    figure, axes = plt.subplots(figsize=(max(4.5, 1.5 + 0.22 * len(order)), 3.4), layout="constrained")
    numbers, top = np.arange(1, len(order) + 1), int(np.argmax(rho))
    axes.plot(numbers, rho, color=CYCLE[0], marker="o", ms=4)
    axes.plot(numbers[top], rho[top], marker="o", ms=9, color=OURS, ls="", label=f"kept: {top + 1}")
    axes.set_xticks(numbers, [str(layer) for layer in order], fontsize=8)
    axes.set(xlabel="layer added", ylabel="rho")
    axes.set_title(f"Greedy layer selection, {profile.info.transformation}", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def cluster_map(plt: Any, profile: Profile, calibration: CalibrationSet) -> Any:
    """The calibration signatures in the plane of their first two components, with the centroids."""
    signatures = profile.signature_transform().transform_many(calibration.prefill_counts)
    signed = signatures.any(axis=1)
    if np.count_nonzero(signed) < 3:
        raise CalibrationError("fewer than 3 requests of the calibration set have a signature to draw")
    workers = [str(worker) for worker in range(profile.workers)]
    labels = calibration.label[signed].tolist()
    return signature_map(plt, project(signatures[signed], labels, profile.centroids, workers))
