"""The calibration set: what is saved comes back, and what is wrong is named."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eldr.errors import CalibrationError
from eldr.profile.dataset import CalibrationSet
from support.synthetic import calibration_set

ARRAYS = ("prefill_counts", "decode_counts", "label", "prompt_tokens", "output_tokens")


def test_round_trip(tmp_path: Path) -> None:
    saved = calibration_set(requests=7)
    saved.save(tmp_path / "new" / "cal.npz")
    loaded = CalibrationSet.load(tmp_path / "new" / "cal.npz")
    for name in ARRAYS:
        assert np.array_equal(getattr(loaded, name), getattr(saved, name))
    assert (loaded.model, loaded.top_k, loaded.eldr_version) == (saved.model, saved.top_k, saved.eldr_version)
    assert (len(loaded), loaded.layers, loaded.experts) == (7, saved.layers, saved.experts)
    assert loaded.prompt_id is None


def test_prompt_ids_and_labels_in_any_script_survive(tmp_path: Path) -> None:
    saved = replace(
        calibration_set(requests=3), prompt_id=np.array(["a", "b", "c"]), label=np.array(["код", "法", ""])
    )
    saved.save(tmp_path / "cal.npz")
    loaded = CalibrationSet.load(tmp_path / "cal.npz")
    assert loaded.prompt_id is not None
    assert loaded.prompt_id.tolist() == ["a", "b", "c"]
    assert loaded.label.tolist() == ["код", "法", ""]


def test_rows_selects_every_array_alike() -> None:
    whole = calibration_set(requests=6)
    part = whole.rows(np.array([4, 1]))
    for name in ARRAYS:
        assert np.array_equal(getattr(part, name), getattr(whole, name)[[4, 1]])
    assert part.model == whole.model


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefill_counts", np.zeros((3, 2), np.uint32)),
        ("prefill_counts", np.zeros((0, 2, 8), np.uint32)),
        ("prefill_counts", np.zeros((3, 2, 8), np.int64)),
        ("decode_counts", np.zeros((3, 2, 9), np.uint32)),
        ("label", np.arange(3)),
        ("label", np.array(["a", "b"])),
        ("prompt_id", np.array(["a", "b"])),
        ("prompt_tokens", np.ones(3, np.int64)),
        ("output_tokens", np.ones((3, 1), np.int32)),
        ("top_k", 0),
        ("top_k", 2.0),
        ("top_k", 99),
        ("model", ""),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(CalibrationError, match=f"'{field}'.*eldr calibrate"):
        replace(calibration_set(requests=3, layers=2, experts=8), **{field: value})


@pytest.mark.parametrize(
    ("field", "tokens"), [("prefill_counts", "prompt_tokens"), ("decode_counts", "output_tokens")]
)
def test_counts_must_match_the_tokens(field: str, tokens: str) -> None:
    good = calibration_set(requests=3)
    counts = getattr(good, field).copy()
    counts[1, 0, 0] += 1
    with pytest.raises(CalibrationError, match=f"'{field}' is wrong in row 1"):
        replace(good, **{field: counts})
    with pytest.raises(CalibrationError, match=f"'{field}' is wrong in row 0"):
        replace(good, **{tokens: np.zeros(3, np.int32)})
    lopsided = getattr(good, field).copy()
    lopsided[2, 0, lopsided[2, 0].argmax()] -= 1
    lopsided[2, 1, 0] += 1  # the sum over all layers stays right
    with pytest.raises(CalibrationError, match=f"'{field}' is wrong in row 2"):
        replace(good, **{field: lopsided})


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "cal.npz"
    with pytest.raises(CalibrationError, match="no calibration set at"):
        CalibrationSet.load(path)
    path.write_bytes(b"")
    with pytest.raises(CalibrationError, match="is not a calibration set"):
        CalibrationSet.load(path)
    np.savez(path, other=np.ones(3))
    with pytest.raises(CalibrationError, match="'prefill_counts' is missing"):
        CalibrationSet.load(path)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(CalibrationError, match="is not a calibration set"):
        CalibrationSet.load(path)
    with pytest.raises(CalibrationError, match=r"cannot read .*: Is a directory"):
        CalibrationSet.load(tmp_path)


def test_members_that_are_no_arrays(tmp_path: Path) -> None:
    path = tmp_path / "cal.npz"
    good = calibration_set(requests=3)
    good.save(path)
    meta = np.load(path)["meta"]
    with zipfile.ZipFile(path, "w") as archive:
        for name in ARRAYS:
            archive.writestr(f"{name}.npy", b"hello")
        with archive.open("meta.npy", "w") as file:
            np.save(file, meta)
    with pytest.raises(CalibrationError, match="'prefill_counts' is not an array"):
        CalibrationSet.load(path)


def test_a_header_that_numpy_cannot_even_tokenize(tmp_path: Path) -> None:
    path = tmp_path / "cal.npz"
    good = calibration_set(requests=3, layers=2, experts=8)
    np.savez(path, meta=np.array("{}"), **{name: getattr(good, name) for name in ARRAYS})
    path.write_bytes(path.read_bytes().replace(b"'shape': (3, 2, 8), }", b"'shape': (3, 2, 8X, }"))
    with pytest.raises(CalibrationError, match="is damaged"):
        CalibrationSet.load(path)


@pytest.mark.parametrize(
    "meta",
    ["{", "[]", "[" * 100_000, "{}", '{"model": "m"}', '{"model": 3, "top_k": 2, "eldr_version": "0"}'],
)
def test_bad_metadata(tmp_path: Path, meta: str) -> None:
    good = calibration_set(requests=3)
    path = tmp_path / "cal.npz"
    np.savez(path, meta=np.array(meta), **{name: getattr(good, name) for name in ARRAYS})
    with pytest.raises(CalibrationError, match=r"'(meta|model)'"):
        CalibrationSet.load(path)


def test_damage_anywhere_is_a_calibration_error_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "cal.npz"
    good = calibration_set(requests=3)
    good.save(path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data)
        damaged[rng.integers(len(damaged))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            loaded = CalibrationSet.load(path)
        except CalibrationError:
            continue
        assert np.array_equal(loaded.prefill_counts, good.prefill_counts)


def test_an_interrupted_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cal.npz"
    calibration_set(requests=3).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(np, "savez_compressed", lambda file, **_: file.write(b"part") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calibration_set(requests=4).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cal.npz"]
