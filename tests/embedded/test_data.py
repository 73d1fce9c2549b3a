"""The data folder: what is read, how batches mix, and what a bad folder is told."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("tokenizers")

from eldr.embedded.data import (
    DOMAINS,
    END_OF_TEXT_ID,
    MixedBatches,
    encode_texts,
    read_texts,
    train_tokenizer,
)
from eldr.errors import ConfigError


def write_rows(path: Path, rows: list[object]) -> None:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def streams(windows: int = 6, length: int = 4) -> list[np.ndarray]:
    """Two domains whose token ids tell domain and position."""
    return [np.arange(windows * length + 1, dtype=np.uint16) + 1000 * domain for domain in range(2)]


def test_reads_one_split_in_order(tmp_path: Path) -> None:
    rows = [{"split": split, "text": f"{split} {i}"} for i in range(2) for split in ("train", "val")]
    write_rows(tmp_path / "code.jsonl.xz", list(rows))
    assert read_texts(tmp_path, "code", "val") == ["val 0", "val 1"]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"math\.jsonl\.xz does not exist; --data needs"):
        read_texts(tmp_path, "math", "train")


@pytest.mark.parametrize("row", [["no", "object"], {"text": "no split"}, 7])
def test_rows_of_another_form_are_refused(tmp_path: Path, row: object) -> None:
    write_rows(tmp_path / "law.jsonl.xz", [row])
    with pytest.raises(ConfigError, match="is damaged"):
        read_texts(tmp_path, "law", "train")


@pytest.mark.parametrize("cut", [0, 3, 40])
def test_a_file_that_is_cut_or_no_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "en.jsonl.xz"
    write_rows(path, [{"split": "train", "text": "word " * 50}])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ConfigError, match=r"en\.jsonl\.xz"):
        read_texts(tmp_path, "en", "train")


def test_missing_split_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "fr.jsonl.xz", [{"split": "train", "text": "mot"}])
    with pytest.raises(ConfigError, match="no text of split 'val'"):
        read_texts(tmp_path, "fr", "val")


def test_training_on_a_bad_folder_raises_before_any_work(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from eldr.embedded import train

    result = CliRunner().invoke(train.main, ["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, ConfigError)
    assert "code.jsonl.xz does not exist" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_texts_end_with_the_end_token() -> None:
    tokenizer = train_tokenizer({"en": ["one two", "three 42"]}, 270)
    ids = encode_texts(tokenizer, ["one", "42"])
    assert ids.dtype == np.uint16
    assert np.flatnonzero(ids == END_OF_TEXT_ID).tolist() == [len(ids) - 4, len(ids) - 1]  # "4", "2", end


def test_batch_takes_the_domains_in_turn() -> None:
    batch = MixedBatches(streams(), sequence_tokens=4, batch_sequences=6).batch(3)
    assert batch.shape == (6, 5)
    assert (batch[:, 0] // 1000).tolist() == [0, 1, 0, 1, 0, 1]
    assert (np.diff(batch, axis=1) == 1).all()


def test_batch_is_a_function_of_its_step() -> None:
    one, other = (MixedBatches(streams(), sequence_tokens=4, batch_sequences=4) for _ in range(2))
    one.batch(0)
    assert np.array_equal(one.batch(2), other.batch(2))


def test_every_window_once_in_each_pass_and_in_another_order_next_time() -> None:
    batches = MixedBatches(streams(windows=6), sequence_tokens=4, batch_sequences=12)
    passes = [np.sort(batches.batch(step)[:, 0]).tolist() for step in range(2)]
    assert passes[0] == passes[1] == sorted([i * 4 for i in range(6)] + [1000 + i * 4 for i in range(6)])
    assert not np.array_equal(batches.batch(0), batches.batch(1))


def test_ten_domains() -> None:
    assert len(set(DOMAINS)) == 10
