"""Runs a comparison and keeps its numbers and plots beside the documents.

python -m eldr.bench.publish report demo docs/bench    # keep the report of a demo, too
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from eldr.bench.experiment import Experiment, count_stages, run_experiment
from eldr.bench.local import replay_engine
from eldr.bench.progress import Stages, wide_console
from eldr.bench.replay import replay_all
from eldr.bench.report import make_report, write_report
from eldr.bench.settings import Settings
from eldr.bench.tables import findings, rich_table
from eldr.program import run

F = TypeVar("F", bound=Callable[..., Any])


def comparison(name: str, *, requests: int, repeats: int) -> Callable[[F], F]:
    """Decorate a benchmark that keeps a comparison as `name` with the options that all of these have."""
    options = (
        click.option(
            "--out", required=True, type=click.Path(path_type=Path), help="Folder for JSON and plots."
        ),
        click.option(
            "--work", default=Path("report") / name, type=click.Path(path_type=Path), help="For the rest."
        ),
        click.option("--requests", default=requests, show_default=True, help="Prompts to serve in each run."),
        click.option("--repeats", default=repeats, show_default=True, help="Runs of each policy."),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def measure(settings: Settings, name: str, folder: Path, *, then_replay: bool = False) -> None:
    """Run, print the tables, and write FOLDER/NAME.json and .png, and with `then_replay` NAME_replay.json
    and .png.
    """
    replays = 1 + len(settings.policies) * settings.repeats if then_replay else 0
    stages = Stages(wide_console(), count_stages(settings) + replays)
    experiment = run_experiment(settings, stages)
    _publish(experiment, stages, name, folder)
    if then_replay:
        _publish(_replayed(experiment, stages), stages, f"{name}_replay", folder)


def _replayed(live: Experiment, stages: Stages) -> Experiment:
    """The same comparison from one engine at a time, with a report folder of its own."""
    engine = replay_engine(live.settings)
    with stages.stage("start one vLLM"):
        engine.start().wait_ready()
    try:
        runs = replay_all(live.settings, engine, live.settings.step_log(engine.spec.name), live.runs, stages)
    finally:
        engine.stop()
    return replace(live, runs=runs, settings=replace(live.settings, out=live.settings.out / "replay"))


def _publish(experiment: Experiment, stages: Stages, name: str, folder: Path) -> None:
    experiment.settings.out.mkdir(parents=True, exist_ok=True)
    report = make_report(experiment)
    write_report(experiment, report)
    stages.console.print(rich_table(report), soft_wrap=False)
    for sentence in findings(report):
        stages.console.print(f"• {sentence}")
    keep(experiment.settings.out, name, folder)


def keep(report: Path, name: str, folder: Path) -> None:
    """Copy a report folder to FOLDER: numbers as NAME.json, bars as NAME.png, others as NAME_PLOT.png."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(report / "report.json", folder / f"{name}.json")
    shutil.copyfile(report / "policies.png", folder / f"{name}.png")
    for plot in ("active_experts", "signatures", "placement"):
        shutil.copyfile(report / f"{plot}.png", folder / f"{name}_{plot}.png")


@click.command()
@click.argument("report", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("name")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(report: Path, name: str, folder: Path) -> None:
    """Keep the numbers and plots of a report folder as NAME in FOLDER."""
    keep(report, name, folder)


if __name__ == "__main__":
    run(main)
