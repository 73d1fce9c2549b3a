from pathlib import Path

import numpy as np
import pytest

from eldr.calibrate.journal import Header, Journal
from eldr.calibrate.observation import Observation
from eldr.errors import CalibrationError, ConfigError

HEADER = Header(model="m", source="trace", max_tokens=8)


def observation(seed: int) -> Observation:
    rng = np.random.default_rng(seed)
    prefill, decode = rng.integers(0, 70_000, (2, 3, 5)).astype(np.uint32)
    return Observation(prefill, decode, 2, seed, seed + 1)


def assert_same(left: Observation, right: Observation) -> None:
    np.testing.assert_array_equal(left.prefill, right.prefill)
    np.testing.assert_array_equal(left.decode, right.decode)
    assert (left.top_k, left.prompt_tokens, left.output_tokens) == (
        right.top_k,
        right.prompt_tokens,
        right.output_tokens,
    )


def test_what_was_appended_is_read_back(tmp_path) -> None:
    with Journal(tmp_path / "j", HEADER) as journal:
        for seed in range(3):
            journal.append(f"k{seed}", observation(seed))
    with Journal(tmp_path / "j", HEADER) as journal:
        assert list(journal.done) == ["k0", "k1", "k2"]
        for seed in range(3):
            assert_same(journal.done[f"k{seed}"], observation(seed))


def test_every_cut_of_the_file_keeps_the_whole_lines(tmp_path) -> None:
    path = tmp_path / "j"
    with Journal(path, HEADER) as journal:
        journal.append("k0", observation(0))
        journal.append("k1", observation(1))
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        with Journal(path, HEADER) as journal:
            assert len(journal.done) == max(0, lines - 1)
            journal.append("k2", observation(2))
        with Journal(path, HEADER) as journal:
            assert_same(journal.done["k2"], observation(2))


def test_a_journal_of_another_run_is_refused(tmp_path) -> None:
    Journal(tmp_path / "j", HEADER).close()
    other = Header(model="m", source="trace", max_tokens=9)
    with pytest.raises(CalibrationError, match="max_tokens 8, now 9"):
        Journal(tmp_path / "j", other)


def test_a_damaged_journal_is_refused(tmp_path) -> None:
    with Journal(tmp_path / "j", HEADER) as journal:
        journal.append("k0", observation(0))
    lines = (tmp_path / "j").read_bytes().split(b"\n")
    (tmp_path / "j").write_bytes(b"\n".join([lines[0], lines[1][:40], b""]))
    with pytest.raises(CalibrationError, match="is damaged"):
        Journal(tmp_path / "j", HEADER)


@pytest.mark.parametrize("content", [b"notes of mine", b"notes\nof mine", b"\0" * 100])
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(CalibrationError, match="is damaged"):
        Journal(tmp_path / "j", HEADER)
    assert (tmp_path / "j").read_bytes() == content


def test_a_journal_that_cannot_be_written_is_an_expected_error(tmp_path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "j"):
        with pytest.raises(ConfigError, match="cannot write"):
            Journal(path, HEADER)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
def test_a_full_disk_is_said_once(tmp_path) -> None:
    with Journal(tmp_path / "j", HEADER) as journal:
        journal._file.close()
        journal._file = Path("/dev/full").open("ab")  # noqa: SIM115 - the journal closes it
        with pytest.raises(ConfigError, match="No space left"):
            journal.append("k0", observation(0))
    assert journal.done == {}
