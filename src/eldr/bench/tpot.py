"""`make bench-tpot`: time per output token under each policy, with the memory-bound variant of the model."""

from pathlib import Path

import click

from eldr.bench.publish import comparison, measure
from eldr.bench.settings import Settings
from eldr.embedded import wide_model
from eldr.program import run

NAME = "tpot_wide"


@click.command()
@comparison(NAME, requests=128, repeats=3)
@click.option("--replay", is_flag=True, help="Then replay each policy's decisions on one engine at a time.")
def main(out: Path, work: Path, requests: int, repeats: int, replay: bool) -> None:
    """Measure and keep tpot_wide, and with --replay tpot_wide_replay.

    Batches of 16 and long outputs: a prefill reads every expert, which hides what decode steps read.
    """
    settings = Settings(
        out=work,
        model=wide_model(),
        decode=2,
        batch=16,
        max_tokens=128,
        requests=requests,
        repeats=repeats,
    )
    measure(settings, NAME, out, then_replay=replay)


if __name__ == "__main__":
    run(main)
