"""`make bench-active-experts`: active experts a decode step under each policy, with four decode workers."""

from pathlib import Path

import click

from eldr.bench.publish import comparison, measure
from eldr.bench.settings import Settings
from eldr.embedded import model_path
from eldr.program import run

NAME = "active_experts_k4"


@click.command()
@comparison(NAME, requests=320, repeats=1)
@click.option("--batch", default=12, show_default=True, help="Requests in flight a decode worker.")
def main(out: Path, work: Path, requests: int, batch: int, repeats: int) -> None:
    """Measure and keep active_experts_k4."""
    settings = Settings(
        out=work,
        model=model_path(),
        decode=4,
        max_tokens=96,
        requests=requests,
        batch=batch,
        repeats=repeats,
    )
    measure(settings, NAME, out)


if __name__ == "__main__":
    run(main)
