"""What `eldr simulate` prints and writes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from eldr.bench.plots import GREYS, OURS, pyplot, save_figure
from eldr.errors import ConfigError
from eldr.files import replacing
from eldr.sim.comparison import BASELINES, Interval, PolicyRow
from eldr.sim.replay import Replay

PICTURES = (".png", ".svg", ".pdf")
MOST_DIFFERENCES = 10


def policy_table(rows: Sequence[PolicyRow], seeds: int) -> Table:
    """One line a policy, with half the width of 95 % intervals over seeds."""
    title = f"Means over {seeds} seeds, ± half of the 95 % interval" if seeds > 1 else "One seed"
    reference = next((row.reference for row in rows), None)
    table = Table(title=title, box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True)
    headers = (
        "TPOT p50 ms",
        "p99",
        "TTFT p50 ms",
        "p99",
        "active experts",
        "batch",
        "tokens/s",
        "idlest-busiest",
    )
    for header in (*headers, "" if reference is None else f"TPOT p50 vs {reference}"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row), style=None if row.policy in BASELINES else "bold green")
    return table


def _cells(row: PolicyRow) -> list[str]:
    spread = "-"
    if row.idlest is not None and row.busiest is not None:
        spread = f"{row.idlest.mean:.2f}-{row.busiest.mean:.2f}"
    return [
        row.policy,
        _figure(row.tpot_p50_ms, 2),
        _figure(row.tpot_p99_ms, 2),
        _figure(row.ttft_p50_ms, 1),
        _figure(row.ttft_p99_ms, 1),
        _figure(row.active_experts, 2),
        _figure(row.mean_batch, 1),
        _figure(row.output_tokens_per_s, 0),
        spread,
        "" if row.tpot_change is None else _figure(_percent(row.tpot_change), 1, sign="+") + " %",
    ]


def _figure(value: Interval | None, digits: int, sign: str = "") -> str:
    if value is None:
        return "-"
    text = f"{value.mean:{sign}.{digits}f}"
    return text if value.high is None else f"{text} ±{value.high - value.mean:.{digits}f}"


def _percent(value: Interval) -> Interval:
    ends = (None if end is None else end * 100 for end in (value.low, value.high))
    return Interval(value.mean * 100, *ends)


def outcome_lines(rows: Sequence[PolicyRow]) -> Iterator[str]:
    """One line for each policy with requests that did not end ok."""
    for row in rows:
        lost = {name: count for name, count in row.outcomes.items() if name != "ok" and count}
        if lost:
            yield f"{row.policy}: " + ", ".join(f"{count} requests {name}" for name, count in lost.items())


def replay_lines(replay: Replay) -> Iterator[str]:
    """What a replay found, and the first decisions that came out otherwise."""
    rounded = f", {replay.within_rounding} within the log's rounding" if replay.within_rounding else ""
    yield f"{replay.policy}: {replay.same} of {replay.decisions} decisions are the same{rounded}"
    for one in replay.different[:MOST_DIFFERENCES]:
        yield f"  request {one.request_id}, attempt {one.attempt}: {one.logged} logged, {one.replayed} now"
    if len(replay.different) > MOST_DIFFERENCES:
        yield f"  and {len(replay.different) - MOST_DIFFERENCES} more"


def write_json(path: Path, content: Any) -> None:
    """Write what msgspec can encode, for people to read too."""
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def check_picture(path: Path | None) -> None:
    """Raise ConfigError, rather now than after a run, for a picture that cannot be drawn."""
    if path is not None:
        if path.suffix not in PICTURES:
            raise ConfigError(f"--plot {path}: give a name that ends in {', '.join(PICTURES)}")
        pyplot()


def plot(rows: Sequence[PolicyRow], title: str, path: Path) -> None:
    """Bars of median TPOT, its tail and active experts, with intervals."""
    plt = pyplot()
    panels = (
        ("tpot_p50_ms", "TPOT p50 (ms)"),
        ("tpot_p99_ms", "TPOT p99 (ms)"),
        ("active_experts", "active experts"),
    )
    figure, all_axes = plt.subplots(1, len(panels), figsize=(10, 3.4), layout="constrained")
    for axes, (name, label) in zip(all_axes, panels, strict=True):
        for place, row in enumerate(rows):
            value = getattr(row, name)
            if value is not None:
                half = 0.0 if value.high is None else value.high - value.mean
                axes.bar(place, value.mean, yerr=half or None, capsize=3, color=_color(row.policy, place))
        axes.set_xticks(range(len(rows)), [row.policy for row in rows], rotation=30, ha="right")
        axes.set_title(label, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    save_figure(figure, path)


def _color(policy: str, place: int) -> str:
    return GREYS[place % len(GREYS)] if policy in BASELINES else OURS
