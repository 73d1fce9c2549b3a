"""Makes the simulator's cost files from measured latencies.

    python -m eldr.bench.sim_costs --out src/eldr/sim/costs

Every part of a file says in `fits` what it was fitted to, or from what it was derived where nobody measured.
"""

from pathlib import Path

import click
import msgspec

from eldr.bench.cost_parts import SOURCES, MoeSource, Parts, fitted
from eldr.bench.model_shapes import (
    COLLECTIVES_US,
    LINK_BYTES_PER_S,
    PEAK_BYTES_PER_S,
    PEAK_FLOPS,
    PREFILL_USE_OF_PEAK,
    QWEN3_30B,
    QWEN3_235B,
    TRANSFER_FIXED_US,
    ModelShape,
)
from eldr.bench.workload import data_folder
from eldr.errors import CalibrationError
from eldr.files import replacing
from eldr.program import run
from eldr.sim.cost import Fit, Moe, Prefill, Rest, StepCost, Transfer, checked

FIG_2_RATIO = 4.7
"""The paper, Fig. 2: MoE-layer latency on MI300X at batch 64, 128 active experts against 16."""


def all_costs(parts: Parts) -> list[StepCost]:
    """Every GPU and model that a table or the paper tells something of."""
    return [*(measured(parts, source) for source in SOURCES), mi300x(parts), mi300x_235b(parts)]


def measured(parts: Parts, source: MoeSource) -> StepCost:
    """The MoE layer as measured."""
    fit = parts.moe(source)
    a0, a1, b = fit.coefficients.tolist()
    moe = Moe(fixed_us=a0, active_us=a1, token_us=b)
    return _whole(parts, source.gpu, source.shape, moe, fitted("moe", source.source, fit))


def mi300x(parts: Parts) -> StepCost:
    """a0 / a1 as Fig. 2 says; a1 by memory bandwidth, and b as on an H200, of which Fig. 2 shows nothing."""
    h200 = measured(parts, SOURCES[0]).moe
    share = PEAK_BYTES_PER_S["H200"] / PEAK_BYTES_PER_S["MI300X"]
    active_us = h200.active_us * share
    fixed_us = active_us * (128 - FIG_2_RATIO * 16) / (FIG_2_RATIO - 1)
    text = f"128 active experts cost {FIG_2_RATIO} x 16 of them (paper, Fig. 2); scale by bandwidth from H200"
    moe = Moe(fixed_us=fixed_us, active_us=active_us, token_us=h200.token_us * share)
    return _whole(parts, "MI300X", QWEN3_30B, moe, Fit(part="moe", source=text))


def mi300x_235b(parts: Parts) -> StepCost:
    """Qwen3-235B over four GPUs: as the smaller model, by bytes an expert, and collectives on top."""
    small = mi300x(parts).moe
    larger = QWEN3_235B.expert_params / QWEN3_30B.expert_params
    moe = Moe(
        fixed_us=small.fixed_us + COLLECTIVES_US,
        active_us=small.active_us * larger,
        token_us=small.token_us * larger,
    )
    text = "derived: Qwen3-30B-A3B on MI300X by bytes an expert; collectives assumed"
    return _whole(parts, "MI300X", QWEN3_235B, moe, Fit(part="moe", source=text))


def _whole(parts: Parts, gpu: str, shape: ModelShape, moe: Moe, fit: Fit) -> StepCost:
    attention, attention_fits = parts.attention(gpu, shape)
    rest, rest_fit = parts.rest(gpu, shape)
    return checked(
        StepCost(
            name=f"{gpu} {shape.name}".lower().replace(" ", "-"),
            gpu=gpu,
            model=shape.name,
            layers=shape.layers,
            experts=shape.experts,
            top_k=shape.top_k,
            ranks=shape.ranks,
            moe=moe,
            attention=attention,
            rest=rest,
            prefill=_prefill(gpu, shape, moe, rest),
            transfer=_transfer(shape),
            evidence="decode: see fits; prefill and transfer: assumptions (docs/simulator.md)",
            fits=(fit, *attention_fits, rest_fit),
        )
    )


def _prefill(gpu: str, shape: ModelShape, moe: Moe, rest: Rest) -> Prefill:
    """All experts are read once, and the arithmetic of each token is added."""
    experts_us = shape.layers * (moe.fixed_us + moe.active_us * shape.experts / shape.ranks)
    flops_per_us = shape.ranks * PEAK_FLOPS[gpu] * PREFILL_USE_OF_PEAK * 1e-6
    return Prefill(
        fixed_us=experts_us + rest.fixed_us,
        token_us=2 * shape.active_params / flops_per_us,
        pair_us=4 * shape.head_width * shape.layers / flops_per_us,
    )


def _transfer(shape: ModelShape) -> Transfer:
    kv_bytes = shape.full_kv_bytes + shape.window_kv_bytes
    return Transfer(fixed_us=TRANSFER_FIXED_US, token_us=kv_bytes / LINK_BYTES_PER_S / shape.ranks * 1e6)


def write_costs(costs: list[StepCost], folder: Path) -> None:
    """Write each as NAME.json, with six digits: more than the measurements have."""
    for cost in costs:
        text = msgspec.json.encode(_rounded(msgspec.to_builtins(cost)))
        with replacing(folder / f"{cost.name}.json") as file:
            file.write(msgspec.json.format(text, indent=2) + b"\n")


def _rounded(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
    return value


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the files."
)
def main(out: Path) -> None:
    """Fit the simulator's cost files again."""
    data = data_folder()
    if data is None:
        raise CalibrationError("no data folder: set ELDR_DATA")
    costs = all_costs(Parts(data / "latency"))
    write_costs(costs, out)
    for cost in costs:
        step_ms = cost.step_s(100 / cost.ranks, 32, 32 * 1000) * 1e3
        print(f"{cost.name}: a0 {cost.moe.fixed_us:.1f}, a1 {cost.moe.active_us:.3f}, step {step_ms:.1f} ms")


if __name__ == "__main__":
    run(main)
