"""What the processes of one router tell each other of requests."""

import fcntl
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from adapt.seen import record
from eldr.adapt import shared
from eldr.adapt.choice import Choice
from eldr.adapt.learned import FILE, Learned, told
from eldr.adapt.live import Learning
from eldr.adapt.shared import SharedLearning
from eldr.proxy.learner import Live
from eldr.settings_adapt import AdaptConfig
from eldr.types import ExpertCounts
from support.mock_engine import TOP_K
from support.profiles import domain_profile


@pytest.fixture
def learning() -> Learning:
    return Learning(AdaptConfig(), Choice("locality_band"), tau=0.1, seed=0)


def counts(layers: int = 2) -> ExpertCounts:
    return ExpertCounts(np.ones((layers, 128), np.uint32), TOP_K, tokens=64, covered=64)


def test_the_first_learns_from_the_requests_of_all(learning: Learning) -> None:
    processes = SharedLearning(learning)
    first, other = (processes.of_process(row) for row in range(2))
    first.saw(record(0, decided_s=1.0), counts())
    other.saw(record(1, decided_s=2.0), counts())
    other.saw(record(2, decided_s=3.0), None)
    cast(Any, first)._read()
    seen = learning._latest.seen()
    assert [one.record.request_id for one in seen] == ["0", "1", "2"]
    assert [one.counts is not None for one in seen] == [True, True, False]


def test_what_cannot_be_told_fails_no_request(learning: Learning) -> None:
    processes = SharedLearning(learning)
    other = processes.of_process(1)
    other.saw(record(0, decided_s=1.0), counts(layers=4096))  # 2 MiB, more than a datagram holds
    for number in range(500):  # and more than the first has room for
        other.saw(record(number, decided_s=2.0), counts())
    cast(Any, processes.of_process(0))._read()
    assert 0 < len(learning._latest) < 500


def test_a_burst_is_sent_later_and_a_gap_begins_the_latest_anew(learning: Learning) -> None:
    processes = SharedLearning(learning)
    first, other = (cast(Any, processes.of_process(row)) for row in range(2))
    for number in range(100):
        other.saw(record(number, decided_s=1.0), counts())
    for _ in range(20):
        first._read()
        other._send()
    assert len(learning._latest) == 100
    for number in range(600):
        other.saw(record(number, decided_s=2.0), counts())
    for _ in range(60):
        first._read()
        other._send()
    assert len(learning._latest) == shared.MOST_UNSENT


def test_what_cannot_be_used_leaves_all_as_it_is(
    learning: Learning, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Path) -> Learned:
        raise EOFError("a file of another version")

    monkeypatch.setattr(shared, "told", broken)
    follower, now = cast(Any, SharedLearning(learning).of_process(1)), Learned(None, (), Choice("jsq"))
    with caplog.at_level(logging.ERROR):
        assert follower._followed(now, cast(Live, None), Path()) is now
    assert "routes as before" in caplog.text


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_process_that_takes_anothers_place_learns_on_without_what_it_cannot_read(
    learning: Learning,
    tmp_path: Path,
    content: bytes | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Learned(domain_profile(), ("d0", "d1"), Choice("jsq")).tell(tmp_path)
    if content is None:
        monkeypatch.setattr(os, "geteuid", lambda: -1)
    else:
        (tmp_path / FILE).write_bytes(content)
    live = Mock(folder=tmp_path, profile=None)
    live.decode.pool.view().worker_ids = ("d0", "d1")
    with caplog.at_level(logging.ERROR):
        begun = learning.begin(live)
    assert (begun.profile, begun.policy) == (None, Choice("locality_band"))
    assert "begins without it" in caplog.text
    live.metrics.refits.labels.assert_called_once_with("failed")
    begun.tell(tmp_path)  # as after the next look
    monkeypatch.undo()
    known = told(tmp_path)
    assert known is not None
    assert known.policy == Choice("locality_band")


def test_a_folder_that_was_removed_is_made_again_for_this_user_and_held(tmp_path: Path) -> None:
    folder = tmp_path / "eldr-metrics-x"
    Learned(None, (), Choice("jsq")).tell(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    lock = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_told_again_is_no_change(learning: Learning, tmp_path: Path) -> None:
    """Else each look would have workers seated again, and policies begin anew, in all other processes."""
    follower, live = cast(Any, SharedLearning(learning).of_process(1)), Mock()
    first = Learned(domain_profile(), ("d0", "d1"), Choice("jsq"), {"learned_from": 9.0})
    first.tell(tmp_path)
    now = follower._followed(Learned(None, (), Choice("jsq")), live, tmp_path)
    replace(first, gauges={"learned_from": 10.0}).tell(tmp_path)
    now = follower._followed(now, live, tmp_path)
    assert live.signer.use.call_count == live.decode.reseat.call_count == 1
    assert [call.args for call in live.metrics.learned_from.set.call_args_list] == [(9.0,), (10.0,)]
    other = domain_profile(tau=0.3)
    replace(first, profile=other).tell(tmp_path)
    assert follower._followed(now, live, tmp_path).profile.info == other.info
    assert live.decode.reseat.call_count == 2


def test_what_another_user_left_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Learned(None, (), Choice("jsq")).tell(tmp_path)
    known = told(tmp_path)
    assert known is not None
    assert known.policy == Choice("jsq")
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    with pytest.raises(PermissionError, match="another user"):
        told(tmp_path)
