"""`make bench-active-experts`: active experts a decode step under each policy, with four decode workers."""

from pathlib import Path

import click

from eldr.bench.publish import measure
from eldr.bench.settings import Settings
from eldr.embedded import model_path
from eldr.program import run

NAME = "active_experts_k4"


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the JSON file and the plot."
)
@click.option(
    "--work", default=Path("report") / NAME, type=click.Path(path_type=Path), help="Everything else."
)
@click.option("--requests", default=320, show_default=True, help="Prompts to serve in each run.")
@click.option("--batch", default=12, show_default=True, help="Requests in flight a decode worker.")
@click.option("--repeats", default=1, show_default=True, help="Runs of each policy.")
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
