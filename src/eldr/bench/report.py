"""The report of a comparison: numbers, tables, records and plots, all made from what was saved."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eldr.bench.experiment import Experiment
from eldr.bench.machine import describe_machine
from eldr.bench.offline import OfflineGain, against_mixed, mixed_by_batch, offline_gain
from eldr.bench.outputs import Difference, differences
from eldr.bench.plots import plot_all
from eldr.bench.results import BASELINES, Change, Row, change, rows
from eldr.bench.settings import Settings
from eldr.bench.signature_map import SignatureMap, project
from eldr.bench.steplog import Step
from eldr.files import replacing
from eldr.profile.active import activation_rates
from eldr.profile.artifact import ProfileInfo

EVIDENCE = "engine"


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy that looks at experts gains over the best baseline of each number.

    same_batch: active experts, both as `Report.against_mixed`: what is left when other work on the machine
    made their batches differ. live_share: same_batch / the off-line gain; None where
    there is nothing to gain off line.
    """

    policy: str
    active_experts: Change
    tpot_p50: Change
    same_batch: Change
    live_share: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison in numbers.

    gains: of every policy that is no baseline; none where there is no baseline.
    against_mixed: by policy, active experts against random batches of the same sizes, as a change.
    offline: the yardstick, at the mean batch of the first policy that is no baseline, and at others.
    checked, different: answers compared with plain vLLM's, and those that were not the same.
    """

    evidence: str = EVIDENCE
    created_at: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    prompts: str
    profile: ProfileInfo
    rows: list[Row]
    gains: list[Gain]
    offline: list[OfflineGain]
    against_mixed: dict[str, float]
    checked: int
    different: list[Difference]


def make_report(experiment: Experiment) -> Report:
    """The numbers of a comparison."""
    table = rows(experiment.runs)
    relative = _against_mixed(experiment)
    own = [entry.mean_batch for entry in table if entry.policy not in BASELINES]
    batch = max(2, round(own[0] if own else table[0].mean_batch))
    offline = _offline(experiment, dict.fromkeys((batch, 8, 16)))
    return Report(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        settings=_settings(experiment.settings),
        prompts=experiment.workload.source,
        profile=experiment.profile.info,
        rows=table,
        gains=gains(table, relative, offline[0]),
        offline=offline,
        against_mixed=relative,
        checked=sum(len(run.replies) for run in experiment.runs),
        different=differences(experiment.runs, experiment.reference),
    )


def gains(table: Sequence[Row], against_mixed: dict[str, float], yardstick: OfflineGain) -> list[Gain]:
    """What each policy that is no baseline gains, in the order of the table."""
    found = []
    for own in table:
        active = change(table, own.policy, lambda entry: entry.active_experts)
        tpot = change(table, own.policy, lambda entry: entry.tpot_p50_ms)
        same = change(table, own.policy, lambda entry: 1 + against_mixed[entry.policy])
        if own.policy in BASELINES or active is None or tpot is None or same is None:
            continue
        found.append(
            Gain(
                policy=own.policy,
                active_experts=active,
                tpot_p50=tpot,
                same_batch=same,
                live_share=same.ratio / yardstick.gain if yardstick.gain else None,
            )
        )
    return found


def write_report(experiment: Experiment, report: Report, *, times: bool = True) -> list[Path]:
    """Write report.json, records.jsonl, runs.json and the plots into the experiment's folder.

    times: whether the plots show times, which say nothing where an active expert costs nothing.
    """
    folder = experiment.settings.out
    numbers, records, runs = (folder / name for name in ("report.json", "records.jsonl", "runs.json"))
    _write(numbers, msgspec.json.format(msgspec.json.encode(report)))
    replies = [reply for run in experiment.runs for reply in run.replies]
    _write(records, b"".join(msgspec.json.encode(reply.record) + b"\n" for reply in replies))
    _write(runs, msgspec.json.encode(experiment.runs))
    return [
        numbers,
        records,
        runs,
        *plot_all(experiment.runs, signature_space(experiment), folder, times=times),
    ]


def signature_space(experiment: Experiment) -> SignatureMap:
    """The signatures of the served requests and the centroids, in two dimensions."""
    signatures = experiment.profile.signature_transform().transform_many(experiment.served.prefill_counts)
    workers = list(experiment.runs[0].steps)
    return project(signatures, experiment.served.label.tolist(), experiment.profile.centroids, workers)


def _offline(experiment: Experiment, batches: Iterable[int]) -> list[OfflineGain]:
    """The yardstick on the very requests that were served."""
    profile, served = experiment.profile, experiment.served
    signatures = profile.signature_transform().transform_many(served.prefill_counts)
    nearest = (signatures @ profile.centroids.T).argmax(axis=1)
    rates = activation_rates(served.decode_counts, served.top_k)
    return [offline_gain(rates, nearest, batch) for batch in batches]


def _against_mixed(experiment: Experiment) -> dict[str, float]:
    logs: dict[str, list[Step]] = {}
    for run in experiment.runs:
        logs.setdefault(run.policy, []).extend(run.log)
    largest = max(step.batch for log in logs.values() for step in log)
    rates = activation_rates(experiment.served.decode_counts, experiment.served.top_k)
    mixed = mixed_by_batch(rates, largest)
    return {policy: against_mixed(log, mixed) for policy, log in logs.items()}


def _settings(settings: Settings) -> dict[str, Any]:
    """Without the folders, which say nothing to a reader."""
    return {**asdict(settings), "out": None, "prompts": None, "model": settings.model.name}


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
