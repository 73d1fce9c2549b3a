"""How far the simulator can be trusted: each part against something that is not the simulator.

    python -m eldr.bench.sim_validity --out docs/bench [--live FOLDER of eldr.bench.sim_live]

Writes sim_validity.json, and with --page the part "validity" of docs/simulator.md. Without --live the live
comparison of an earlier report is kept; with --kept all of it is, and only the page is written.
"""

from pathlib import Path

import click
import msgspec

from eldr.bench.documents import replace_part
from eldr.bench.machine import describe_machine
from eldr.bench.sim_validity_active import ActiveCheck, check_active
from eldr.bench.sim_validity_cost import CostCheck, RestCheck, check_costs, check_rest
from eldr.bench.sim_validity_live import LiveCheck, check_live
from eldr.bench.sim_validity_page import page
from eldr.bench.sim_validity_queues import QueueCheck, check_queues
from eldr.bench.workload import data_folder
from eldr.errors import CalibrationError, ConfigError
from eldr.files import replacing
from eldr.program import run


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All checks."""

    machine: dict[str, object]
    active: list[ActiveCheck]
    costs: list[CostCheck]
    rest: list[RestCheck]
    queues: list[QueueCheck]
    live: list[LiveCheck]


def make_report(data: Path, live: list[LiveCheck]) -> Report:
    """Run every check that needs no engine."""
    return Report(
        machine=describe_machine(),
        active=check_active(data / "traces"),
        costs=check_costs(data / "latency"),
        rest=check_rest(data / "latency"),
        queues=check_queues(),
        live=live,
    )


@click.command()
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="For the report."
)
@click.option("--live", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A live run.")
@click.option(
    "--page", "document", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="To fill."
)
@click.option("--kept", is_flag=True, help="Only fill the page from the report that is there.")
def main(out: Path, live: Path | None, document: Path | None, kept: bool) -> None:
    """Check the simulator."""
    path = out / "sim_validity.json"
    earlier = msgspec.json.decode(path.read_bytes(), type=Report) if path.is_file() else None
    if kept:
        if earlier is None:
            raise ConfigError(f"--kept: there is no {path}; run without it once")
        report = earlier
    else:
        report = make_report(_data(), check_live(live) if live else earlier.live if earlier else [])
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    text = page(report.active, report.costs, report.rest, report.queues, report.live)
    print(text)
    if document is not None:
        replace_part(document, "validity", text)


def _data() -> Path:
    data = data_folder()
    if data is None:
        raise CalibrationError("no data folder: set ELDR_DATA")
    return data


if __name__ == "__main__":
    run(main)
