"""The profile file: what is saved comes back, and what is wrong is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eldr.errors import ProfileError
from eldr.profile.artifact import FORMAT, Profile, ProfileInfo
from eldr.profile.fit import fit_profile
from eldr.signature import SignatureTransform
from support.synthetic import calibration_set

ARRAYS = ("idf", "kept_layers", "centroids", "cluster_sizes")


@pytest.fixture(scope="module")
def profile() -> Profile:
    return fit_profile(calibration_set(requests=20), 3, transformation="idf", layers="all", tau=0.2)[0]


def test_round_trip(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.safetensors"
    profile.save(path)
    loaded = Profile.load(path)
    for name in ARRAYS:
        assert np.array_equal(getattr(loaded, name), getattr(profile, name))
        assert getattr(loaded, name).dtype == getattr(profile, name).dtype
    assert loaded.info == profile.info
    assert loaded.workers == 3
    counts = calibration_set(requests=4, seed=9).prefill_counts
    before, after = profile.signature_transform(), loaded.signature_transform()
    assert np.array_equal(before.transform_many(counts), after.transform_many(counts))


def test_some_layers_kept(profile: Profile, tmp_path: Path) -> None:
    kept = np.array([2, 0])
    counts = calibration_set(requests=4, seed=9).prefill_counts
    transform = SignatureTransform.fitted("idf", profile.idf, kept)
    part = replace(profile, kept_layers=kept, centroids=transform.transform_many(counts)[:3])
    part.save(tmp_path / "p")
    loaded = Profile.load(tmp_path / "p").signature_transform()
    assert np.array_equal(loaded.transform_many(counts), transform.transform_many(counts))


def test_the_file_is_plain_safetensors(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p.safetensors")
    arrays = load_file(tmp_path / "p.safetensors")
    assert set(arrays) == set(ARRAYS)
    assert arrays["idf"].shape == (3, 16)
    assert arrays["centroids"].shape == (3, 48)
    np.testing.assert_allclose(np.linalg.norm(arrays["centroids"], axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("running", "message"),
    [
        ({"model": "other"}, "model synthetic in the profile and other running"),
        ({"layers": 4}, "layers 3 in the profile and 4 running"),
        ({"experts": 8}, "experts 16 in the profile and 8 running"),
        ({"top_k": 1}, "top_k 2 in the profile and 1 running"),
        ({"workers": 5}, "workers 3 in the profile and 5 running; run `eldr fit --workers 5`"),
        ({"layers": 4, "workers": 5}, "layers 3 .* 4 running, workers 3 .* 5 running"),
    ],
)
def test_check_fits_says_what_differs(profile: Profile, running: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {"layers": 3, "experts": 16}
    profile.check_fits(**fitting)
    profile.check_fits(**fitting, top_k=2, model="synthetic", workers=3)
    with pytest.raises(ProfileError, match=message):
        profile.check_fits(**fitting | running)


def nan(array: np.ndarray) -> np.ndarray:
    spoiled = array.copy()
    spoiled.flat[0] = np.nan
    return spoiled


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("idf", nan),
        ("idf", lambda a: a[:2]),
        ("idf", lambda a: a.astype(np.float64)),
        ("kept_layers", lambda a: a + 1),
        ("kept_layers", lambda a: a * 0),
        ("kept_layers", lambda a: a.astype(np.int32)),
        ("kept_layers", lambda a: a[:0]),
        ("centroids", nan),
        ("centroids", lambda a: a * 2),
        ("centroids", lambda a: a[:, :-1]),
        ("centroids", lambda a: a[:2]),
        ("centroids", lambda a: a.ravel()),
        ("cluster_sizes", lambda a: a - 100),
        ("cluster_sizes", lambda a: a[None]),
    ],
)
def test_bad_arrays_are_named(profile: Profile, tmp_path: Path, part: str, change: Any) -> None:
    arrays = {name: getattr(profile, name) for name in ARRAYS}
    arrays[part] = np.ascontiguousarray(change(arrays[part]))
    write(tmp_path / "p", arrays, profile.info)
    with pytest.raises(ProfileError, match=f"{tmp_path}/p: its '.*(eldr fit)"):
        Profile.load(tmp_path / "p")


def write(path: Path, arrays: dict[str, np.ndarray], info: object) -> None:
    text = info if isinstance(info, str) else msgspec.json.encode(info).decode()
    save_file(arrays, path, metadata={"eldr": text})


@pytest.mark.parametrize("missing", ARRAYS)
def test_a_missing_array_is_named(profile: Profile, tmp_path: Path, missing: str) -> None:
    write(tmp_path / "p", {n: getattr(profile, n) for n in ARRAYS if n != missing}, profile.info)
    with pytest.raises(ProfileError, match=f"its '{missing}' is missing"):
        Profile.load(tmp_path / "p")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": FORMAT + 1, "new": 1}, f"its 'format' is version {FORMAT + 1}, expected {FORMAT}"),
        ({"format": None}, "its 'format' is version None"),
        ({"layers": 0}, "its 'layers' is 0"),
        ({"layers": "3"}, "metadata is damaged"),
        ({"layers": 4}, "its 'fingerprint'"),
        ({"fingerprint": "0"}, "its 'fingerprint'"),
        ({"transformation": "gates"}, "its 'transformation' is 'gates'"),
        ({"tau": 3.0}, "its 'tau' is 3.0"),
        ({"model": None}, "metadata is damaged"),
    ],
)
def test_bad_metadata_is_named(
    profile: Profile, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    info = msgspec.to_builtins(profile.info) | change
    write(tmp_path / "p", {n: getattr(profile, n) for n in ARRAYS}, info)
    with pytest.raises(ProfileError, match=message):
        Profile.load(tmp_path / "p")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
def test_metadata_that_is_none(profile: Profile, tmp_path: Path, text: str) -> None:
    write(tmp_path / "p", {n: getattr(profile, n) for n in ARRAYS}, text)
    with pytest.raises(ProfileError, match=r"metadata is damaged|'format' is"):
        Profile.load(tmp_path / "p")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="there is no such file; make it with `eldr fit`"):
        Profile.load(tmp_path / "absent")
    with pytest.raises(ProfileError, match="there is no such file"):
        Profile.load(tmp_path)
    for data in (b"", b"text", b"\xff" * 100):
        (tmp_path / "p").write_bytes(data)
        with pytest.raises(ProfileError, match="not a profile, or damaged"):
            Profile.load(tmp_path / "p")
    save_file({"idf": np.ones(3)}, tmp_path / "p")
    with pytest.raises(ProfileError, match="no 'eldr' in its metadata"):
        Profile.load(tmp_path / "p")


def test_a_calibration_set_is_told_from_a_profile(tmp_path: Path) -> None:
    calibration_set(requests=2).save(tmp_path / "cal.npz")
    with pytest.raises(
        ProfileError, match=r"cal\.npz: this is a calibration set; make a profile of it with `eldr fit`"
    ):
        Profile.load(tmp_path / "cal.npz")


def test_damage_anywhere_is_a_profile_error_or_a_valid_profile(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p"
    profile.save(path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data[: rng.integers(0, len(data))] if rng.random() < 0.3 else data)
        for _ in range(int(rng.integers(1, 4))):
            if damaged:
                damaged[rng.integers(min(len(damaged), 1500))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            Profile.load(path)
        except ProfileError:
            refused += 1
    assert refused > 200


def test_a_profile_that_is_made_wrong_is_refused_at_once(profile: Profile) -> None:
    with pytest.raises(ProfileError, match="its 'centroids'"):
        replace(profile, centroids=profile.centroids * 0)
    assert isinstance(profile.info, ProfileInfo)
