"""`eldr calibrate`: prompts through a running engine into a calibration set."""

import asyncio
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eldr.calibrate.assemble import assemble
from eldr.calibrate.collect import Outcome, Target, collect, pending, served_model
from eldr.calibrate.journal import Header, Journal
from eldr.calibrate.mix import data_folder, draw_workload, workload_names
from eldr.calibrate.model_info import num_experts_of
from eldr.calibrate.observation import Source
from eldr.calibrate.prompts import Prompt, read_prompts
from eldr.calibrate.routed_experts import RoutedExperts
from eldr.calibrate.trace import Trace
from eldr.cli.tables import composition

console = Console(stderr=True, highlight=False, soft_wrap=True)


@click.command()
@click.option(
    "--engine", required=True, metavar="URL", help="A running vLLM server, e.g. http://127.0.0.1:8000."
)
@click.option(
    "--prompts",
    "prompt_path",
    type=click.Path(path_type=Path),
    help='JSON lines {"prompt", "domain"}, or a folder of such files.',
)
@click.option(
    "--benchmark",
    type=click.Choice(workload_names()),
    help="Instead of --prompts: tasks (12 benchmarks of 4 domains), languages (WildChat's mix), or one.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with tasks/NAME.jsonl and languages/CODE.jsonl, used instead of the hub. [$ELDR_DATA]",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of a benchmark's draw.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The set to write (.npz)."
)
@click.option(
    "--max-tokens", default=64, show_default=True, type=click.IntRange(2), help="Output tokens a prompt."
)
@click.option("--concurrency", default=8, show_default=True, type=click.IntRange(1), help="Requests at once.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Use N prompts: the first of --prompts, or drawn in a benchmark's shares (up to 1000).",
)
@click.option("--model", help="Model name to send; default: the engine's first.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice([Trace.name, RoutedExperts.name]),
    default=Trace.name,
    show_default=True,
    help="ELDR's connector, or stock vLLM started with --enable-return-routed-experts.",
)
@click.option("--experts", type=click.IntRange(2), help="Experts of the model, for --source routed_experts.")
def command(
    engine: str,
    prompt_path: Path | None,
    benchmark: str | None,
    data: Path | None,
    seed: int,
    out: Path,
    max_tokens: int,
    concurrency: int,
    limit: int | None,
    model: str | None,
    source_name: str,
    experts: int | None,
) -> None:
    """Record the expert counts of prompts on a running engine.

    Finished prompts are kept in OUT.journal at once: to continue after an interruption, run the same
    command again.
    """
    prompts = _prompts(prompt_path, benchmark, data, limit, seed)
    url = engine.rstrip("/")
    served = asyncio.run(served_model(url))
    source = Trace() if source_name == Trace.name else RoutedExperts(experts or num_experts_of(served.root))
    target = Target(url, model or served.name, max_tokens, concurrency)
    header = Header(target.model, source.name, max_tokens)
    with Journal(out.with_name(out.name + ".journal"), header) as journal:
        outcome = _collect(target, prompts, source, journal)
        assemble(outcome.observed, target.model).save(out)
        if not outcome.failed:
            journal.delete()
    _show("failed", outcome.failed)
    console.print(f"{len(outcome.observed)} prompts measured, {len(outcome.failed)} failed: {out}")


def _prompts(
    path: Path | None, benchmark: str | None, data: Path | None, limit: int | None, seed: int
) -> list[Prompt]:
    if (path is None) == (benchmark is None):
        raise click.UsageError("give either --prompts or --benchmark")
    if path is not None:
        found = read_prompts(path)
        _show("skipped", found.skipped)
        return found.prompts[:limit]
    drawn = draw_workload(str(benchmark), limit, data or data_folder(), seed)
    labels = composition(Counter(prompt.label for prompt in drawn.prompts))
    console.print(f"{len(drawn.prompts)} prompts from {drawn.source}: {labels}")
    return drawn.prompts


def _collect(target: Target, prompts: list[Prompt], source: Source, journal: Journal) -> Outcome:
    columns = (TextColumn("calibrate"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(pending(prompts, journal)))
        return asyncio.run(collect(target, prompts, source, journal, lambda: bar.advance(task)))


def _show(what: str, lines: list[str], at_most: int = 5) -> None:
    for line in lines[:at_most]:
        console.print(f"{what} {line}", markup=False)
    if len(lines) > at_most:
        console.print(f"{what}: {len(lines) - at_most} more")
