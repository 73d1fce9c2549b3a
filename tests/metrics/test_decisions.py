"""The decision log: whole lines, rotated by size, that hold what a replay needs."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from eldr.errors import ConfigError, EldrError
from eldr.metrics.decisions import Decided, DecisionLog, DecisionRecord, read_decisions
from eldr.metrics.records import RequestRecord
from eldr.types import Decision, RoutingRequest
from support.pools import pool_view, unit_rows

SIGNATURE = unit_rows([[3, 4]])[0]
END = RequestRecord(
    request_id="r",
    path="/v1/completions",
    started_at=1000.0,
    arrival_s=5.0,
    first_token_s=6.5,
    finish_s=9.0,
    output_tokens=7,
    outcome="ok",
)


def decided(at_s: float = 6.0, signature: np.ndarray | None = SIGNATURE) -> Decided:
    view = pool_view([2, 0, 1], available=[True, True, False], centroids=unit_rows([[1, 0], [0, 1], [0, 0]]))
    request = RoutingRequest("engine-id", signature, None, 11, 64)
    decision = Decision(worker=1, worker_id="w1", policy="locality_band", in_flight=0, band_size=2)
    return Decided(at_s, request, decision, view, None)


def written(folder: Path, *decisions: Decided) -> list[DecisionRecord]:
    log = DecisionLog(str(folder / "d.jsonl"), 10**6, 2)
    log.write(END, list(decisions))
    log.close()
    return list(read_decisions(folder / "d.jsonl"))


def test_a_line_holds_the_whole_decision_and_its_end(tmp_path: Path) -> None:
    (line,) = written(tmp_path, decided())
    assert (line.time, line.arrival_s, line.decided_s, line.finish_s) == (1001.0, 5.0, 6.0, 9.0)
    assert line.worker_ids == ("w0", "w1", "w2")
    assert (line.in_flight, line.in_flight_tokens) == ([2, 0, 1], [200.0, 0.0, 100.0])
    assert line.available == [True, True, False]
    assert line.similarities == [0.6, 0.8, None]
    assert (line.prompt_tokens, line.max_tokens, line.output_tokens) == (11, 64, 7)
    assert (line.policy, line.decode_worker, line.fallback, line.outcome) == (
        "locality_band",
        "w1",
        None,
        "ok",
    )


def test_without_a_signature_there_are_no_similarities(tmp_path: Path) -> None:
    (line,) = written(tmp_path, decided(signature=None))
    assert line.similarities is None


def test_only_the_last_choice_of_a_request_has_an_end(tmp_path: Path) -> None:
    first, second = written(tmp_path, decided(6.0), decided(6.2))
    assert (first.attempt, first.finish_s, first.output_tokens, first.outcome) == (1, None, None, None)
    assert (second.attempt, second.finish_s) == (2, 9.0)


def test_rotation_keeps_whole_lines_in_order_and_drops_the_oldest_file(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    log = DecisionLog(str(path), 1000, 3)
    for number in range(20):
        log.write(END, [decided(float(number))])
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.jsonl", "d.jsonl.1", "d.jsonl.2"]
    times = [
        line.decided_s
        for name in ("d.jsonl.2", "d.jsonl.1", "d.jsonl")
        for line in read_decisions(tmp_path / name)
    ]
    assert times == [float(number) for number in range(20 - len(times), 20)]
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())


def test_one_file_is_begun_again(tmp_path: Path) -> None:
    log = DecisionLog(str(tmp_path / "d.jsonl"), 1000, 1)
    for number in range(20):
        log.write(END, [decided(float(number))])
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == ["d.jsonl"]
    assert [line.decided_s for line in read_decisions(tmp_path / "d.jsonl")][-1] == 19.0


@pytest.mark.parametrize("files", [1, 2, 4])
def test_what_keeps_a_new_file_from_being_made_costs_no_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    log = DecisionLog(str(tmp_path / "d.jsonl"), 1000, files)
    for number in range(20):
        log.write(END, [decided(float(number))])

    def lines() -> list[float]:
        return sorted(line.decided_s for file in tmp_path.glob("d.*") for line in read_decisions(file))

    before = lines()
    with monkeypatch.context() as out_of_descriptors:
        out_of_descriptors.setattr("eldr.metrics.decisions.os.open", no_descriptors)
        failed = 0
        for number in range(20, 30):
            try:
                log.write(END, [decided(float(number))])
            except OSError as error:
                failed += error.errno == errno.EMFILE
        assert failed > 5
    assert set(before) <= set(lines())
    log.write(END, [decided(99.0)])
    log.close()
    assert lines()[-1] == 99.0
    assert len(list(tmp_path.iterdir())) == files


def no_descriptors(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_files_move_up_only_to_a_gap(tmp_path: Path) -> None:
    log = DecisionLog(str(tmp_path / "d.jsonl"), 1, 4)
    for number in range(4):
        log.write(END, [decided(float(number))])
    (tmp_path / "d.jsonl.1").unlink()  # as after a rotation that failed on its way
    log.write(END, [decided(4.0)])
    log.close()
    kept = {file.name: [line.decided_s for line in read_decisions(file)] for file in tmp_path.iterdir()}
    assert kept == {"d.jsonl": [4.0], "d.jsonl.1": [3.0], "d.jsonl.2": [1.0], "d.jsonl.3": [0.0]}


def test_an_old_file_is_continued(tmp_path: Path) -> None:
    written(tmp_path, decided(1.0))
    assert [line.decided_s for line in written(tmp_path, decided(2.0))] == [1.0, 2.0]


def test_a_file_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="decision_log: cannot write /proc/x"):
        DecisionLog("/proc/x", 1, 1)
    (tmp_path / "d.jsonl").write_bytes(b"{}\n")
    with pytest.raises(EldrError, match=r"d.jsonl, line 1: not a decision"):
        list(read_decisions(tmp_path / "d.jsonl"))
    (tmp_path / "d.jsonl").write_bytes(b'{"cut')
    assert list(read_decisions(tmp_path / "d.jsonl")) == []
