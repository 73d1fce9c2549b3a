"""Which transformation and which layers a profile uses: chosen by rho, or as asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eldr.errors import ConfigError
from eldr.profile.dataset import CalibrationSet
from eldr.signature import TRANSFORMATIONS, SignatureTransform
from eldr.signature.layers import LayerCurve, select_layers
from eldr.signature.quality import rho

AUTO = "auto"
GREEDY = "greedy"
ALL = "all"

Layers = str | Sequence[int]
"""GREEDY, ALL, or the layers themselves."""


@dataclass(frozen=True, slots=True)
class Choice:
    """transform: fitted. rho: with its layers, None where not defined. tried: rho of each transformation with
    all layers. curve: of the greedy selection, None where there was none.
    """

    transform: SignatureTransform
    rho: float | None
    tried: Mapping[str, float | None]
    curve: LayerCurve | None


def choose(calibration: CalibrationSet, transformation: str, layers: Layers, seed: int) -> Choice:
    """Take the transformation with the best rho on all layers, then the layers that a greedy selection finds.

    transformation: AUTO or a name. Raises ConfigError for an unknown name or layer.
    """
    tried = {
        name: _rho(calibration, _fitted(calibration, name, None), seed) for name in _names(transformation)
    }
    best = _best(calibration, tried)
    curve = _curve(calibration, best, seed) if layers == GREEDY else None
    transform = _fitted(calibration, best, curve.kept if curve else _given(layers))
    return Choice(transform, _rho(calibration, transform, seed), tried, curve)


def _names(transformation: str) -> tuple[str, ...]:
    """The transformations to try; of equal rho the first wins, so the paper's stands first."""
    if transformation == AUTO:
        return TRANSFORMATIONS.names()
    if transformation not in TRANSFORMATIONS.names():
        choices = ", ".join((AUTO, *TRANSFORMATIONS.names()))
        raise ConfigError(f"unknown transformation {transformation!r}; choose from {choices}")
    return (transformation,)


def _best(calibration: CalibrationSet, tried: Mapping[str, float | None]) -> str:
    """The transformation with the best rho; where none has one, the first that gives signatures at all."""
    measured = {name: value for name, value in tried.items() if value is not None}
    if measured:
        return max(measured, key=lambda name: measured[name])
    prefill = calibration.prefill_counts
    telling = (name for name in tried if _fitted(calibration, name, None).transform_many(prefill).any())
    return next(telling, next(iter(tried)))


def _given(layers: Layers) -> Sequence[int] | None:
    if not isinstance(layers, str):
        return layers
    if layers not in (GREEDY, ALL):
        raise ConfigError(f"'layers' is {layers!r}; give {GREEDY!r}, {ALL!r} or the layers to keep")
    return None


def _fitted(
    calibration: CalibrationSet, transformation: str, layers: Sequence[int] | None
) -> SignatureTransform:
    return SignatureTransform(transformation, layers).fit(calibration.prefill_counts)


def _rho(calibration: CalibrationSet, transform: SignatureTransform, seed: int) -> float | None:
    signatures = transform.transform_many(calibration.prefill_counts)
    return rho(signatures, calibration.decode_counts, seed=seed)


def _curve(calibration: CalibrationSet, transformation: str, seed: int) -> LayerCurve | None:
    features = _fitted(calibration, transformation, None).features(calibration.prefill_counts)
    return select_layers(features, calibration.decode_counts, seed=seed)
