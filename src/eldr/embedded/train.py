"""Train the embedded model: `python -m eldr.embedded.train --data DIR --out DIR` (`make model`).

Two processes of one thread each share every step (one process of two threads collapses at its barriers when
the cores are busy). The learning rate falls by steps or by wall time, whichever is further on, so a busy
machine gives a worse model and not a late one. A run that was interrupted goes on from its last checkpoint.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.distributed as dist
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from eldr.embedded import data as text
from eldr.embedded.export import export
from eldr.embedded.network import Network, Shape
from eldr.embedded.trainer import PROCESSES, SEQUENCE_TOKENS, SEQUENCES, Run, Trainer
from eldr.files import replacing
from eldr.program import EXISTING_FOLDER, run

STEPS = 1300
CHECKPOINT_S = 120.0
LOG_STEPS = 10


def prepare(data: Path, run: Run) -> None:
    """Write the tokenizer, unless a resumed run has it, and the training tokens into the run's folder."""
    texts = {domain: text.read_texts(data, domain, "train") for domain in text.DOMAINS}
    path = run.out / "tokenizer.json"
    if not path.exists():
        with replacing(path) as file:
            file.write(text.train_tokenizer(texts, run.shape.vocab_size).to_str().encode())
    tokenizer = Tokenizer.from_file(str(path))
    for domain in text.DOMAINS:
        with replacing(run.out / f"{domain}.train.npy") as file:
            np.save(file, text.encode_texts(tokenizer, texts[domain]))


def train(rank: int, run: Run) -> None:
    """One process: step until the run is done; process 0 saves, logs and shows the progress."""
    trainer = Trainer(rank, run)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=rank != 0) as bar:
        task = bar.add_task("training", total=1.0)
        saved_s = trainer.spent_s
        while trainer.progress < 1.0:
            stats = trainer.train_step()
            if rank != 0:
                continue
            tokens_m = trainer.step * SEQUENCES * SEQUENCE_TOKENS / 1e6
            shown = f"step {trainer.step}, {tokens_m:.1f} M tokens, loss {stats['loss']:.2f}"
            bar.update(task, completed=trainer.progress, description=shown)
            if trainer.step % LOG_STEPS == 0:
                append_log(run.out / "log.jsonl", {"step": trainer.step, "spent_s": trainer.spent_s, **stats})
            if trainer.spent_s - saved_s >= CHECKPOINT_S or trainer.progress >= 1.0:
                trainer.save()
                saved_s = trainer.spent_s
    dist.destroy_process_group()


def append_log(path: Path, row: dict[str, Any]) -> None:
    """Add one line to the run's log; unlike the other files it grows in place."""
    with open(path, "a", encoding="utf-8") as log:
        log.write(json.dumps({key: round(value, 4) for key, value in row.items()}) + "\n")


def finish(run: Run, model: Path) -> None:
    """Export the last checkpoint, with `training.json`, which the card is made from."""
    state = torch.load(run.checkpoint, weights_only=True)
    export(state["network"], run.shape, run.out / "tokenizer.json", model)
    facts = {
        "parameters": sum(p.numel() for p in Network(run.shape).parameters()),
        "steps": state["step"],
        "tokens": state["step"] * SEQUENCES * SEQUENCE_TOKENS,
        "sequences": SEQUENCES,
        "sequence_tokens": SEQUENCE_TOKENS,
        "seconds": round(state["spent_s"]),
        "processes": PROCESSES,
    }
    with replacing(model / "training.json") as file:
        file.write((json.dumps(facts, indent=2) + "\n").encode())


@click.command()
@click.option("--data", type=EXISTING_FOLDER, required=True, help="Folder of <domain>.jsonl.xz files.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder for checkpoints and the model."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=40.0, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, show_default=True)
def main(data: Path, out: Path, minutes: float, steps: int) -> None:
    """Train the embedded model on DATA, for at most so many minutes or steps, and export it to OUT/model."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes to come
    with tempfile.TemporaryDirectory() as meeting:
        run = Run(out, steps, minutes, f"file://{meeting}/rendezvous", Shape())
        prepare(data, run)
        torch.multiprocessing.spawn(train, args=(run,), nprocs=PROCESSES)
        finish(run, out / "model")
    click.echo(f"The model is in {out / 'model'}; `python -m eldr.embedded.measure --model` writes its card.")


if __name__ == "__main__":
    run(main)
