"""`eldr bench`: measurements of the machine at hand."""

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from eldr.bench.moe_layer import (
    CLOCKS,
    SHAPES,
    MoeLayerReport,
    check_torch,
    cost_of,
    forced,
    measure,
    slug,
    with_earlier,
)
from eldr.files import replacing

console = Console(highlight=False, soft_wrap=True)


@click.group()
def command() -> None:
    """Measure what this machine does."""


@command.command("moe-layer")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(list(SHAPES)),
    help="Shape of the layer; give it again for more. All of them if left out.",
)
@click.option(
    "--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]), help="Where."
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Of each routing.")
@click.option("--memory-gib", type=click.FloatRange(0.1), help="For a layer's weights.")
@click.option(
    "--out",
    default=Path("report/moe_layer"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the report, the plot and the cost files.",
)
def moe_layer(
    models: tuple[str, ...], device: str, repeats: int, memory_gib: float | None, out: Path
) -> None:
    """Time one MoE layer by active experts and batch (Fig. 2), and fit its cost.

    On a CUDA GPU where there is one, else on the CPU. Writes a cost file a model for `eldr simulate --cost`.
    """
    check_torch()
    shapes = [SHAPES[name] for name in models or SHAPES]
    columns = (TextColumn("moe-layer"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=repeats * sum(len(list(forced(shape))) for shape in shapes))
        report = measure(shapes, device, repeats, memory_gib, lambda: bar.advance(task))
    console.print(f"Device: {report.device} ({report.kind}); timed: {CLOCKS[report.kind]}")
    console.print(_table(report), soft_wrap=False)
    for path in write(report, out):
        console.print(f"wrote {path}")


def write(report: MoeLayerReport, folder: Path) -> list[Path]:
    """Write the report, its plot and its cost files into the folder; models measured before stay in it."""
    from eldr.bench.moe_layer_plot import plot

    name = f"moe_layer_{slug(report.device)}"
    report = with_earlier(report, folder / f"{name}.json")
    costs = [cost_of(report, run) for run in report.runs]
    contents = {f"{name}.json": report, **{f"cost_{cost.name}.json": cost for cost in costs}}
    for file_name, content in contents.items():
        with replacing(folder / file_name) as file:
            file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    plot(report, folder / f"{name}.svg")
    return [folder / file_name for file_name in [*contents, f"{name}.svg"]]


def _table(report: MoeLayerReport) -> Table:
    title = "Time of a layer (us) = fixed + active x active experts + token x tokens"
    table = Table(
        "model", "dtype", "fixed", "active", "token", "R2", "error unseen", "16 -> 128", title=title
    )
    for run in report.runs:
        gain = run.fig2["active 16 to 128 at batch 64"]
        numbers = (f"{run.fixed_us:.1f}", f"{run.active_us:.2f}", f"{run.token_us:.2f}", f"{run.r2:.3f}")
        ratio = "-" if gain is None else f"{gain:.1f}x"
        table.add_row(run.model, run.dtype, *numbers, f"{run.cv_error:.1%}", ratio)
    return table
