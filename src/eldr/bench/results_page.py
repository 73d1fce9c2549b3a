"""Writes docs/results.md from the JSON files of the benchmarks, so that no number in it is typed.

python -m eldr.bench.results_page docs/bench docs/results.md README.md
"""

from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from eldr.bench.documents import replace_part
from eldr.bench.report import Report
from eldr.bench.tables import findings, markdown_table
from eldr.errors import ConfigError
from eldr.files import replacing
from eldr.program import run


@dataclass(frozen=True, slots=True)
class Section:
    """A benchmark's place on the page. name: of its JSON file; replayed: made by `eldr.bench.replay`.

    times: whether they are shown. They say nothing where active experts cost none and policies ran one after
    the other, on a machine with other work.
    """

    name: str
    title: str
    command: str
    text: str
    plots: tuple[tuple[str, str], ...]
    replayed: bool = False
    times: bool = True


SECTIONS = (
    Section(
        "active_experts_k4",
        "Active experts with four decode workers",
        "make bench-active-experts",
        "Mixed-domain traffic, every policy in turn over the same engines.",
        (
            ("active_experts_k4_active_experts.png", "Active experts over time"),
            ("active_experts_k4_placement.png", "Who went where"),
        ),
        times=False,
    ),
    Section(
        "tpot_wide",
        "Time per output token, memory-bound",
        "make bench-tpot",
        "The embedded model with its experts padded with zeros from 64 to 2,048: the same function and "
        "outputs, but an active expert must be read from memory, as on a GPU. Policies take turns; each "
        "repeat has an order of its own. The columns hold all repeats; below is each repeat's median.",
        (("tpot_wide.png", "Active experts and TPOT by policy, memory-bound"),),
    ),
    Section(
        "tpot_wide_replay",
        "Time per output token, one engine at a time",
        "make bench-tpot",
        "The decisions of the live run above, replayed without engines that steal each other's time: "
        "policies differ by who decodes together, and by nothing else.",
        (("tpot_wide_replay.png", "Active experts and TPOT by policy, replayed"),),
        replayed=True,
    ),
    Section(
        "demo",
        "The demo",
        "make demo",
        "What `make demo` printed on this machine.",
        (
            ("demo_active_experts.png", "Active experts over time"),
            ("demo_signatures.png", "Signatures and centroids"),
            ("demo_placement.png", "Who went where"),
        ),
        times=False,
    ),
)

HEAD = """# Results

Evidence: **{evidence}** (real vLLM runs). This page is written by `make results` from the JSON
files in [bench/](bench/), which hold every number and the settings of each run.

Active experts are the distinct experts that a decode step reads in a MoE layer: exact, from the engines' own
counters. "change" is against the best of the four baselines, each by its own lowest value.
"vs random" compares the same steps with random batches of the same sizes, so it does not depend on the
load. TPOT is (finish - first token) / (output tokens - 1) per request, TTFT from the arrival (with a backlog:
from sending), both as the client saw them.
"""


def results_page(folder: Path) -> str:
    """The page in Markdown, from those of the files that exist. ConfigError where there is none."""
    reports = [(section, _load(folder / f"{section.name}.json")) for section in SECTIONS]
    found = [(section, report) for section, report in reports if report is not None]
    if not found:
        raise ConfigError(f"no results in {folder}; run {SECTIONS[0].command} first")
    parts = [HEAD.format(evidence=found[0][1].evidence)]
    parts += [_section(section, report, folder) for section, report in found]
    return "\n".join(parts)


def _section(section: Section, report: Report, folder: Path) -> str:
    lines = [
        f"## {section.title}\n",
        f"`{section.command}`, {report.created_at[:10]}. {section.text}\n",
        _replayed(report) if section.replayed else _run(report),
        markdown_table(report, times=section.times) + "\n",
        *(f"- {sentence}" for sentence in findings(report, times=section.times)),
        _repeats(report) if section.times else "",
        *(f"![{text}](bench/{file})\n" for file, text in section.plots if (folder / file).exists()),
        _machine(report),
    ]
    return "\n".join(lines)


def _run(report: Report) -> str:
    settings, profile = report.settings, report.profile
    return (
        f"One prefill and {settings['decode']} decode workers, {settings['dtype']}; "
        f"{settings['requests']} requests of {settings['max_tokens']} output tokens, "
        f"{_arrivals(report)}; "
        f"{settings['repeats']} repeat(s). Prompts: {report.prompts}. Profile: {profile.transformation} of "
        f"{profile.calibration_requests} other prompts{_rho(report)}, tau {profile.tau}.\n"
    )


def _replayed(report: Report) -> str:
    return (
        "Each decode worker's requests, in the order in which the live run sent them there, "
        f"{report.settings['batch']} at a time on one engine, {report.settings['dtype']}. "
        "TTFT is that of an engine that prefills and decodes.\n"
    )


def _arrivals(report: Report) -> str:
    if report.settings["rate"] is not None:
        return f"Poisson arrivals, {report.settings['rate']:.1f} a second"
    in_flight = report.settings["batch"] * report.settings["decode"]
    return f"{in_flight} in flight, in the same order for every policy, the next one sent when one ends"


def _rho(report: Report) -> str:
    return "" if report.profile.rho is None else f" (rho {report.profile.rho:.2f})"


def _repeats(report: Report) -> str:
    if report.rows[0].repeats < 2:
        return ""
    heads = "".join(f" repeat {number + 1} |" for number in range(report.rows[0].repeats))
    lines = [
        f"\n| median TPOT, ms |{heads}",
        "| --- |" + " --- |" * report.rows[0].repeats,
        *(
            f"| {row.policy} |" + "".join(f" {ms:.1f} |" for ms in row.tpot_p50_ms_by_repeat)
            for row in report.rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _machine(report: Report) -> str:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; {versions}.\n"
    )


def _load(path: Path) -> Report | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} is not a report of this version ({error}); run the benchmark again"
        ) from error


def readme_part(folder: Path) -> str:
    """What the README shows of the results. ConfigError where one of the files is missing."""
    active, live = (_needed(folder, name) for name in ("active_experts_k4", "tpot_wide"))
    replayed = _load(folder / "tpot_wide_replay.json")
    lines = [
        markdown_table(active, times=False) + "\n",
        *(f"- {sentence}" for sentence in findings(active, times=False)),
        f"- Memory-bound, two decode workers on these {live.machine['cores']} cores: median TPOT "
        f"against the best baseline's {_tpot(live)}"
        + ("." if replayed is None else f"; with one engine at a time {_tpot(replayed)}."),
    ]
    return "\n".join(lines)


def _tpot(report: Report) -> str:
    """Each policy's median TPOT against the best baseline's."""
    changes = (
        f"{gain.tpot_p50.ratio:+.1%} with {gain.policy} (the best is {gain.tpot_p50.baseline})"
        for gain in report.gains
    )
    return ", ".join(changes) or "not compared"


def _needed(folder: Path, name: str) -> Report:
    report = _load(folder / f"{name}.json")
    if report is None:
        raise ConfigError(f"no {name}.json in {folder}; run its benchmark first (make help)")
    return report


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("page", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("readme", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(folder: Path, page: Path, readme: Path) -> None:
    """Write PAGE, and the results in README, from the files in FOLDER."""
    with replacing(page) as file:
        file.write(results_page(folder).encode())
    replace_part(readme, "results", readme_part(folder))


if __name__ == "__main__":
    run(main)
