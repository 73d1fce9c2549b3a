"""Figures 7 to 9: how well signatures foretell decode, which layers tell, and where the clusters lie."""

from typing import Any

import numpy as np

from eldr.bench.signature_map import project
from eldr.paper.measure.sources import traces_of
from eldr.profile.dataset import CalibrationSet
from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import TRANSFORMATIONS, SignatureTransform
from eldr.signature.layers import select_layers
from eldr.signature.quality import rho

MOST = 1000
"""The paper calibrates on about as many requests."""

SHOWN = 400


def transformations(source: str) -> dict[str, Any]:
    """Fig. 7: rho of each transformation of counts, all layers."""
    recorded = _calibration(source, MOST)
    return {
        **_facts(source),
        "requests": len(recorded),
        "rho": {name: _rho(recorded, name) for name in TRANSFORMATIONS.names()},
    }


def _rho(recorded: CalibrationSet, name: str) -> float | None:
    transform = SignatureTransform(name).fit(recorded.prefill_counts)
    return rho(transform.transform_many(recorded.prefill_counts), recorded.decode_counts)


def layers(source: str, transformation: str, seed: int = 0) -> dict[str, Any]:
    """Fig. 8: layers chosen greedily on one half of the requests, and what that gives on the other half.

    curve: rho after each layer, on the first half; order: the layers; kept: N*. held_out: rho on the second
    half with the kept layers, and with all.
    """
    recorded = _calibration(source, MOST)
    order = np.random.default_rng(seed).permutation(len(recorded))
    chosen, rest = (recorded.rows(np.sort(half)) for half in np.array_split(order, 2))
    transform = SignatureTransform(transformation).fit(chosen.prefill_counts)
    curve = select_layers(transform.features(chosen.prefill_counts), chosen.decode_counts, seed=seed)
    assert curve is not None, "recorded requests differ in what they use"
    kept = SignatureTransform(transformation, curve.kept).fit(chosen.prefill_counts)
    held_out = [rho(t.transform_many(rest.prefill_counts), rest.decode_counts) for t in (kept, transform)]
    return {
        **_facts(source),
        "transformation": transformation,
        "layers": recorded.layers,
        "order": curve.order,
        "curve": curve.rho,
        "kept": len(curve.kept),
        "held_out": dict(zip(("kept", "all"), held_out, strict=True)),
    }


def clusters(source: str, transformation: str, workers: int, seed: int = 0) -> dict[str, Any]:
    """Fig. 9: signatures and balanced centroids on the plane of the two first principal components.

    purity: share of requests that are in a cluster most of whose requests have their label; by_chance: the
    same with the labels shuffled (mean of 20 times).
    """
    recorded = _calibration(source, MOST)
    transform = SignatureTransform(transformation).fit(recorded.prefill_counts)
    signatures = transform.transform_many(recorded.prefill_counts)
    fitted = BalancedKMeans(workers, seed=seed).fit(signatures)
    plane = project(signatures, recorded.label.tolist(), fitted.centroids_, [str(k) for k in range(workers)])
    rng = np.random.default_rng(seed)
    shown = np.sort(rng.permutation(len(recorded))[:SHOWN])
    chance = [_purity(fitted.labels_, rng.permutation(recorded.label)) for _ in range(20)]
    return {
        **_facts(source),
        "workers": workers,
        "points": np.round(plane.points[shown], 4).tolist(),
        "labels": recorded.label[shown].tolist(),
        "clusters": fitted.labels_[shown].tolist(),
        "centroids": np.round(plane.centroids, 4).tolist(),
        "explained": plane.explained,
        "sizes": fitted.sizes_.tolist(),
        "purity": _purity(fitted.labels_, recorded.label),
        "by_chance": float(np.mean(chance)),
    }


def _purity(cluster: Any, label: Any) -> float:
    most = (np.unique(label[cluster == k], return_counts=True)[1].max() for k in np.unique(cluster))
    return float(sum(most) / len(label))


def _calibration(source: str, most: int) -> CalibrationSet:
    traces = traces_of(source)
    chosen = np.sort(np.random.default_rng(0).permutation(len(traces))[:most])
    return traces.rows(chosen).calibration_set()


def _facts(source: str) -> dict[str, Any]:
    traces = traces_of(source)
    return {"model": traces.model, "evidence": traces.evidence, "source": traces.source}
