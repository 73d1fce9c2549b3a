"""`eldr simulate`: policies compared on a simulated cluster, or a router's logged decisions taken again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eldr.cli.simulate_output import (
    check_picture,
    outcome_lines,
    plot,
    policy_table,
    replay_lines,
    write_json,
)
from eldr.cli.simulate_setup import Settings
from eldr.errors import ConfigError
from eldr.metrics.decisions import read_decisions
from eldr.policy import POLICIES
from eldr.profile.artifact import ProfileInfo
from eldr.sim.comparison import PolicyRow, compare
from eldr.sim.cost import StepCost
from eldr.sim.replay import replay_decisions
from eldr.sim.scenario import SOURCES, Scenario

TABLE_WIDTH = 150
"""The table is cut on no terminal; long lines wrap."""

IDLE = {
    "arrivals": {"requests", "rate", "cv", "mix", "prompt_tokens", "output_tokens"}
    | {"prefix_share", "prefix_tokens"},
    "in_flight": {"rate", "cv"},
    "calibration": {"source", "workload"},
}
"""Flags that have no effect beside another one."""

REPLAYED = {"log", "policies", "options", "profile", "seed"}
"""What a replay of logged decisions goes by."""

SHOWN_EVERY = 100
"""Requests between two moves of the progress bar, which would else take longer than they do."""


def pairs(separator: str, example: str) -> Callable[..., tuple[tuple[str, float], ...]]:
    """A callback that reads values like 3@60 or en=0.5: a name, a separator, a number."""

    def parse(
        ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[tuple[str, float], ...]:
        try:
            parts = [value.rsplit(separator, 1) for value in values]
            return tuple((name, float(number)) for name, number in parts)
        except ValueError:
            raise click.BadParameter(
                f"{' '.join(values)}: expected values like {example}", ctx, param
            ) from None

    return parse


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
AT_LEAST_1 = click.IntRange(1)


@click.command()
@click.option(
    "--cost", default="h200-qwen3-30b-a3b", show_default=True, help="GPU and model, or a cost file."
)
@click.option(
    "--source", default="synthetic", show_default=True, type=click.Choice(SOURCES), help="Of expert choices."
)
@click.option(
    "--workload", default="tasks", show_default=True, help="Of synthetic requests: tasks, languages."
)
@click.option("--calibration", type=FILE, help="Serve the requests of a calibration set instead.")
@click.option(
    "--profile", type=FILE, help="Route by this profile; without one, half of the source is fitted to."
)
@click.option("--exact", is_flag=True, help="Count the experts of each token instead of expecting them.")
@click.option("--prefill", default=8, show_default=True, type=click.IntRange(0), help="Prefill workers.")
@click.option("--decode", default=16, show_default=True, type=AT_LEAST_1, help="Decode workers.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES.names()), help="Only these.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="Of the one policy, like tau=0.1."
)
@click.option("--requests", default=3000, show_default=True, type=AT_LEAST_1, help="Requests of each run.")
@click.option(
    "--rate",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Requests a second.",
)
@click.option(
    "--cv",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Of gaps: 1 is Poisson, more bursty.",
)
@click.option("--arrivals", type=FILE, help="Let requests come as in this record file of a router.")
@click.option("--in-flight", type=AT_LEAST_1, help="So many requests at once, instead of arrivals.")
@click.option(
    "--mix",
    "mix",
    multiple=True,
    metavar="LABEL=SHARE",
    callback=pairs("=", "en=0.5"),
    help="Share of a label; else as in the source.",
)
@click.option("--prompt-tokens", type=AT_LEAST_1, help="Median; else as recorded, or 512.")
@click.option("--output-tokens", type=AT_LEAST_1, help="Median; else as recorded, or 256.")
@click.option("--max-batch", default=256, show_default=True, type=AT_LEAST_1, help="Of a decode worker.")
@click.option("--kv-tokens", type=AT_LEAST_1, help="KV cache of a decode worker; else no limit.")
@click.option(
    "--prefix-blocks",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Prefix cache of a prefill worker.",
)
@click.option(
    "--prefix-share",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Prompts with a shared beginning.",
)
@click.option(
    "--prefix-tokens", default=256, show_default=True, type=AT_LEAST_1, help="Length of such a beginning."
)
@click.option(
    "--fail",
    "fails",
    multiple=True,
    metavar="WORKER@S",
    callback=pairs("@", "3@60"),
    help="A decode worker fails.",
)
@click.option(
    "--join",
    "joins",
    multiple=True,
    metavar="WORKER@S",
    callback=pairs("@", "3@60"),
    help="A decode worker joins (again).",
)
@click.option("--seeds", default=5, show_default=True, type=AT_LEAST_1, help="Runs of each policy.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The first of them.")
@click.option("--out", type=NEW_FILE, help="Write all numbers as JSON.")
@click.option("--plot", "picture", type=NEW_FILE, help="Write a picture (.png, .svg, .pdf).")
@click.option("--replay", "log", type=FILE, help="Only take the decisions of a router's decision log again.")
@click.pass_context
def command(
    context: click.Context, /, log: Path | None, out: Path | None, picture: Path | None, **flags: Any
) -> None:
    """Compare routing policies on a simulated cluster.

    The policies, the pool and the profile are the router's own. What is modelled: docs/simulator.md.
    """
    _refuse_idle_flags(context)
    settings = Settings(**flags)
    if log is not None:
        _replay(log, settings)
        return
    check_picture(picture)
    policies, asked, cluster = settings.policy_options(), settings.step_cost(), settings.cluster()
    scenario = settings.scenario(asked)
    cost, hardware = _cost_of(scenario.profile.info, asked)
    make = settings.maker(scenario)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    with _progress(len(make(seeds[0])) * len(policies) * len(seeds)) as advance:
        in_flight = settings.in_flight
        rows = compare(
            make, cluster, policies, scenario.profile, cost, seeds, in_flight=in_flight, advance=advance
        )
    console = Console(highlight=False, soft_wrap=True, width=max(Console().width, TABLE_WIDTH))
    about = f"{settings.prefill}P{settings.decode}D, {hardware}; {scenario.source}"
    console.print(policy_table(rows, len(seeds)))
    for line in (*outcome_lines(rows), f"evidence: {scenario.evidence} ({about})"):
        console.print(line)
    if out is not None:
        write_json(out, _report(settings, scenario, cost, rows))
    if picture is not None:
        plot(rows, about, picture)


def _refuse_idle_flags(context: click.Context) -> None:
    """Raise ConfigError for a flag that another one leaves without effect."""
    given = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    every = {parameter.name for parameter in context.command.params if parameter.name}
    for ruler, idle in {**IDLE, "log": every - REPLAYED}.items():
        if ruler in given and (clash := sorted(given[name] for name in idle & given.keys())):
            raise ConfigError(
                f"{given[ruler]} leaves {', '.join(clash)} without effect; give one or the other"
            )


def _cost_of(info: ProfileInfo, cost: StepCost) -> tuple[StepCost, str]:
    """The cost of the served model's steps, and what to say of it: another model's is lent to it."""
    if cost.shape == (info.layers, info.experts, info.top_k):
        return cost, f"{cost.gpu} with {cost.model}"
    lent = f"{cost.gpu} with the step cost of {cost.model}, borrowed for the same share of active experts"
    return cost.lent_to(info.experts), lent


def _report(settings: Settings, scenario: Scenario, cost: StepCost, rows: list[PolicyRow]) -> dict[str, Any]:
    flags = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    named = {key: value.name if isinstance(value, Path) else value for key, value in flags.items()}
    return {
        "evidence": scenario.evidence,
        "source": scenario.source,
        "settings": named,
        "cost": cost,
        "profile": scenario.profile.info,
        "rows": rows,
    }


def _replay(log: Path, settings: Settings) -> None:
    """Say how many decisions are the same. An error unless all are, where the log's own policy decides."""
    if len(settings.policies) > 1:
        raise ConfigError("--replay takes one policy, or that of the log")
    policy = settings.policies[0] if settings.policies else None
    decisions = list(read_decisions(log))
    options = settings.log_options(policy or next((record.policy for record in decisions), ""))
    replay = replay_decisions(decisions, policy, options=options, seed=settings.seed)
    for line in replay_lines(replay):
        click.echo(line)
    if replay.different and policy is None:
        raise ConfigError(
            "decisions differ; give the router's seed, options or profile, and its log from the start"
        )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done = count(1)
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("requests", total=total)

        def advance() -> None:
            if next(done) % SHOWN_EVERY == 0:
                bar.advance(task, SHOWN_EVERY)

        yield advance
