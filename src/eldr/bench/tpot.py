"""`make bench-tpot`: time per output token under each policy, with the memory-bound variant of the model."""

from pathlib import Path

import click

from eldr.bench.publish import measure
from eldr.bench.settings import Settings
from eldr.embedded import wide_model

NAME = "tpot_wide"


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the JSON file and the plot."
)
@click.option(
    "--work", default=Path("report") / NAME, type=click.Path(path_type=Path), help="Everything else."
)
def main(out: Path, work: Path) -> None:
    """Measure and write tpot_wide.json and .png."""
    settings = Settings(
        out=work, model=wide_model(), decode=2, requests=160, max_tokens=96, batch=8, repeats=3
    )
    measure(settings, NAME, out)


if __name__ == "__main__":
    main()
