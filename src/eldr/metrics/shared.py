"""Metrics that several processes of one router count together, in files of a folder."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import values
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

FILE_BYTES = 1 << 20
"""Of a file that metrics are counted in, from the start: room for those of some 1,000 workers."""


def count_in_files(folder: Path, row: int) -> None:
    """Count in files of a folder from now on, where other processes can read it.

    A process that takes the place of a dead one, with its `row`, counts on from where that one stood. Raises
    OSError where there is no room: a sparse file would end the process with SIGBUS later.
    """
    for kind in ("counter", "gauge_all", "histogram"):
        with (folder / f"{kind}_{row}.db").open("ab") as file:
            file.write(bytes(max(FILE_BYTES - file.tell(), 0)))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: row)  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", "Removal of labels")  # MergedMetrics leaves them out


class MergedMetrics(Collector):
    """Counters and histograms of all processes, added up, and the gauges of this one.

    Gauges read the ledger, which all processes share, and tell which workers are there: what files hold of
    others is left out.
    """

    def __init__(self, own: Collector, folder: Path) -> None:
        self._own, self._folder = own, str(folder)

    def collect(self) -> Iterable[Metric]:
        gauges = [metric for metric in self._own.collect() if metric.type == "gauge"]
        there = {_worker(sample) for gauge in gauges for sample in gauge.samples}
        for metric in MultiProcessCollector(None, self._folder).collect():  # type: ignore[no-untyped-call]
            if metric.type != "gauge":
                metric.samples = [sample for sample in metric.samples if _worker(sample) in there]
                yield metric
        yield from gauges


def _worker(sample: Sample) -> tuple[str | None, str | None]:
    """Role and name of the worker that a sample is of; None twice for a sample of all."""
    return sample.labels.get("role"), sample.labels.get("worker")
