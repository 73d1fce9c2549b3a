"""Figure 7 on synthetic models, which have gate probabilities, so that all of the six candidates can be
compared."""

from typing import Any

from eldr.paper.measure.worlds import World, world_of
from eldr.signature import TRANSFORMATIONS, SignatureTransform
from eldr.signature.gates import GATE_TRANSFORMATIONS, GateTransform
from eldr.signature.quality import rho
from eldr.traces.presets import preset


def gated_transformations(model: str, workload: str, seed: int = 0) -> dict[str, Any]:
    """rho of each transformation of counts and of gate sums, all made layers, of the calibration requests."""
    world = world_of(model, workload, seed, gated=True)
    names = (*TRANSFORMATIONS.names(), *GATE_TRANSFORMATIONS.names())
    return {
        "model": preset(model, workload).model,
        "evidence": "model",
        "requests": len(world.calibration_prefill),
        "rho": {name: _rho(world, name) for name in names},
    }


def _rho(world: World, name: str) -> float | None:
    gates = name in GATE_TRANSFORMATIONS.names()
    before = world.calibration_gates if gates else world.calibration_prefill
    assert before is not None
    transform = (GateTransform if gates else SignatureTransform)(name).fit(before)
    return rho(transform.transform_many(before), world.calibration_rates)
