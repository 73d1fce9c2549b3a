"""Runs a comparison and keeps its numbers and its bar chart beside the documents."""

import shutil
from pathlib import Path

from eldr.bench.experiment import count_stages, run_experiment
from eldr.bench.progress import Stages, wide_console
from eldr.bench.report import make_report, write_report
from eldr.bench.settings import Settings
from eldr.bench.tables import findings, rich_table


def measure(settings: Settings, name: str, folder: Path) -> None:
    """Run, print the table, and write FOLDER/NAME.json and FOLDER/NAME.png."""
    console = wide_console()
    experiment = run_experiment(settings, Stages(console, count_stages(settings)))
    report = make_report(experiment)
    write_report(experiment, report)
    console.print(rich_table(report), soft_wrap=False)
    for sentence in findings(report):
        console.print(f"• {sentence}")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(settings.out / "report.json", folder / f"{name}.json")
    shutil.copyfile(settings.out / "policies.png", folder / f"{name}.png")
