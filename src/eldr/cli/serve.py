"""`eldr serve`."""

from functools import partial
from typing import Any

import click

from eldr.adapt.shared import learners_for
from eldr.config import load_config, parse_option
from eldr.metrics.logs import configure
from eldr.policy import POLICIES
from eldr.proxy.discovery.file import Reload
from eldr.proxy.server import serve

LISTS = ("--prefill", "--decode")
OBSERVE = ("log_format", "decision_log", "otlp_endpoint")
"""Flags of the group `observe`."""
ADAPT = ("refit", "tune")
"""Flags of the group `adapt`."""
ON_OFF = click.Choice(("on", "off"))


class ServeCommand(click.Command):
    """Lets `--prefill` and `--decode` take several URLs each: `--decode URL URL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _spread(args))


def _spread(args: list[str]) -> list[str]:
    """Repeat a list's flag before each of its values."""
    spread: list[str] = []
    flag = None
    for arg in args:
        if arg.startswith("-"):
            flag = arg if arg in LISTS else None
            spread += [] if flag else [arg]
        else:
            spread += [flag, arg] if flag else [arg]
    return spread


@click.command(cls=ServeCommand)
@click.option(
    "--prefill", multiple=True, metavar="[NAME=]URL...", help="Prefill workers (names: p0, p1, ...)."
)
@click.option("--decode", multiple=True, metavar="[NAME=]URL...", help="Decode workers (names: d0, d1, ...).")
@click.option(
    "--policy", type=click.Choice(POLICIES.names()), help="How decode workers are chosen. [soft_locality]"
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the policy: tau=0.1 of locality_band.",
)
@click.option(
    "--profile",
    metavar="FILE",
    help="Profile made by `eldr fit`; without one, requests go by load until one was learned.",
)
@click.option("--host", help="Address to listen on. [127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on. [8000]")
@click.option("--wait", "wait_s", type=float, metavar="SECONDS", help="How long to wait for workers. [10]")
@click.option(
    "--drain", "drain_s", type=float, metavar="SECONDS", help="How long to finish requests at the end. [30]"
)
@click.option("--records", metavar="FILE", help="Append one JSON line a request.")
@click.option(
    "--log-format", type=click.Choice(("text", "json")), help="Log lines for people or machines. [text]"
)
@click.option("--decision-log", metavar="FILE", help="Append one JSON line a routing decision.")
@click.option("--processes", type=int, metavar="N", help="Router processes on one port. [1]")
@click.option("--refit", type=ON_OFF, help="Refit the profile, or make one, by live requests. [on]")
@click.option("--save-profile", "save", metavar="FILE", help="Keep what was learned there, to begin with it.")
@click.option("--tune", type=ON_OFF, help="Choose the policy and its options by live requests. [on]")
@click.option("--otlp", "otlp_endpoint", metavar="URL", help="Send OpenTelemetry spans there.")
@click.option("--admin-port", type=int, help="Port of the admin API, on loopback. [none]")
@click.option(
    "--config", "file", metavar="YAML", help="File with these and more settings; flags win over it."
)
def command(file: str | None, policy: str | None, options: tuple[str, ...], **flags: Any) -> None:
    """Route requests between prefill and decode workers."""
    given = {key: value for key, value in flags.items() if value not in (None, ())}
    observe = {key: given.pop(key) for key in OBSERVE if key in given}
    given |= {"observe": observe} if observe else {}
    adapt = {key: given.pop(key) == "on" for key in ADAPT if key in given}
    adapt |= {"save": given.pop("save")} if "save" in given else {}
    given |= {"adapt": adapt} if adapt else {}
    if policy is not None or options:
        given["policy"] = {"options": dict(parse_option(option) for option in options)}
        given["policy"] |= {"name": policy} if policy else {}
    if (port := given.pop("admin_port", None)) is not None:
        given["admin"] = {"port": port}
    config = load_config(file, given)
    configure(config.observe.log_format)
    reload = Reload(file, partial(load_config, file, given)) if file else None
    serve(config, reload, learners_for(config))
