"""The command line. Each command is a module of this package, imported only when it is run."""

import importlib

import click

from eldr import __version__
from eldr.program import run

COMMANDS = {
    "demo": "Show the gain on this machine with real engines.",
    "serve": "Route requests between prefill and decode workers.",
    "calibrate": "Record the expert counts of prompts on a running engine.",
    "fit": "Fit a profile to a calibration set.",
    "inspect": "Describe a profile or a calibration set.",
    "simulate": "Compare policies on a simulated cluster, or replay logged decisions.",
    "bench": "Measure what this machine does.",
    "paper": "Make the figures and tables of the paper again.",
}


class LazyGroup(click.Group):
    """Finds the command NAME as `command` in eldr.cli.NAME, so that `eldr --help` loads none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"eldr.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Route MoE requests to the decode worker that already uses their experts."""


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit status 1."""
    run(cli)
