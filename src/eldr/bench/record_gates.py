"""Gate probabilities of the recorded prompts: `python -m eldr.bench.record_gates`.

For the first requests of docs/data/embedded_traces.npz, 20 of each prompt file. The embedded model's own
network computes them; its choices have to be those that vLLM reported, or nothing is written. With
OMP_NUM_THREADS=1 it is faster on a busy machine.
"""

from pathlib import Path

import click
import numpy as np
from rich.progress import track

from eldr.bench.record_traces import public_prompts
from eldr.bench.workload import data_folder
from eldr.embedded import model_path
from eldr.errors import CalibrationError
from eldr.program import EXISTING_FOLDER, run
from eldr.traces.embedded import GATES, RECORDED, embedded, save_gates

MOST_DIFFERENT = 1e-3
"""Of the choices: two exact implementations differ where two experts are equally likely."""


@click.command()
@click.option("--data", type=EXISTING_FOLDER, default=None, help="Folder with tasks/ and languages/.")
@click.option("--traces", type=click.Path(path_type=Path), default=RECORDED, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=GATES, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=600, show_default=True)
def main(data: Path | None, traces: Path, out: Path, requests: int) -> None:
    """Record the gate probabilities of the first REQUESTS recorded prompts."""
    from eldr.embedded.gates import GateReader

    data = data or data_folder()
    if data is None:
        raise CalibrationError("no prompts: name their folder with --data or ELDR_DATA")
    recorded = embedded(traces).rows(slice(requests))
    prompts = public_prompts(data, None)[:requests]
    reader = GateReader(model_path())
    gates, counts = zip(*(reader.read(prompt.text) for prompt in track(prompts, "gates")), strict=True)
    different = np.abs(np.stack(counts).astype(np.int64) - recorded.prefill).sum() / 2
    share = different / recorded.prefill.sum(dtype=np.int64)
    if share > MOST_DIFFERENT:
        raise CalibrationError(
            f"{share:.2%} of the choices are not those in {traces}; are these its prompts?"
        )
    save_gates(out, np.stack(gates))
    print(f"{out}: {len(prompts)} requests, {different:.0f} choices differ from vLLM's ({share:.4%})")


if __name__ == "__main__":
    run(main)
