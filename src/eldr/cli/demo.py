"""`eldr demo`: the gain, on this machine, with real engines."""

import math
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from eldr.bench.experiment import count_stages, run_experiment
from eldr.bench.progress import Stages, wide_console
from eldr.bench.report import Report, make_report, write_report
from eldr.bench.results import COMPARED
from eldr.bench.settings import Settings
from eldr.bench.tables import findings, rich_table
from eldr.calibrate.model_info import num_experts_of
from eldr.embedded import model_path, wide_model
from eldr.errors import ConfigError, EldrError
from eldr.policy import POLICIES
from eldr.program import EXISTING_FOLDER

CHOICES = [name for name in POLICIES.names() if name != "domain_label"]
"""domain_label needs a table of workers, which nobody has made here."""

NARROW = (
    "Active experts are exact. Times are left out, since they say nothing here: the engines share {cores} "
    "cores, and the embedded model fits into the processor's cache, where active experts cost nothing. "
    "`eldr demo --wide` serves it memory-bound, as on a GPU."
)
WIDE = "Active experts are exact. TPOT is noisy: the engines share {cores} cores and one memory."


@click.command()
@click.option("--decode", default=3, show_default=True, type=click.IntRange(2, 16), help="Decode workers.")
@click.option("--requests", default=200, show_default=True, type=click.IntRange(20), help="Prompts to serve.")
@click.option(
    "--max-tokens", default=64, show_default=True, type=click.IntRange(2, 512), help="Output tokens."
)
@click.option("--batch", default=10, show_default=True, type=click.IntRange(1), help="In flight a worker.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Poisson arrivals a second, instead.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(CHOICES), help="Only these.")
@click.option("--repeats", default=1, show_default=True, type=click.IntRange(1), help="Runs of each policy.")
@click.option("--wide", is_flag=True, help="Serve the memory-bound variant of the embedded model.")
@click.option("--model", type=EXISTING_FOLDER, help="Folder of another MoE model that vLLM serves.")
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), help="Prompt file or folder.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option(
    "--out", default=Path("report"), show_default=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
def command(wide: bool, model: Path | None, policies: tuple[str, ...], **options: Any) -> None:
    """Compare policies on real vLLM engines on this machine.

    Starts a prefill worker, decode workers and a router, calibrates and fits on one half of the prompts, and
    serves the other half under each policy, in the same order. Outputs are compared with plain vLLM's.
    """
    if options["rate"] is not None and not math.isfinite(options["rate"]):
        raise click.UsageError(f"--rate is {options['rate']}; give a number of requests a second")
    if model is not None:
        num_experts_of(str(model))  # rather now than after minutes of starting engines
    _check_writable(options["out"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = wide_console()
    folder = model or (wide_model() if wide else model_path())
    settings = Settings(model=folder, policies=policies or COMPARED, **options)
    experiment = run_experiment(settings, Stages(console, count_stages(settings)))
    report = make_report(experiment)
    times = wide or model is not None
    files = write_report(experiment, report, times=times)
    _show(console, report, times=times)
    console.print(
        f"\nReport: {files[0].parent} (plots, records and all numbers; docs/demo.md says what is what)"
    )
    if report.different:
        raise EldrError(f"{len(report.different)} outputs differ from plain vLLM's; see {files[0]}")


def _check_writable(folder: Path) -> None:
    """Make the folder. ConfigError where nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"cannot write into {folder}: {error.strerror}; choose another folder with --out"
        ) from error


def _show(console: Console, report: Report, *, times: bool) -> None:
    """Print the table; with times where the model is not so small that an active expert costs nothing."""
    note = WIDE if times else NARROW
    console.print()
    console.print(rich_table(report, times=times), soft_wrap=False)
    console.print()
    for sentence in findings(report, times=times):
        console.print(f"• {sentence}")
    console.print(note.format(cores=os.cpu_count()), style="dim")
