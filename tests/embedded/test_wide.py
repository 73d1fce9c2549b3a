"""The memory-bound variant computes the same function as the model that it is made from."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from eldr.embedded import model_path, wide_model
from eldr.embedded.wide import pad, read_bits
from eldr.errors import ConfigError


def test_padding_keeps_the_corner() -> None:
    bits = np.arange(1, 7, dtype=np.uint16).reshape(2, 3)
    wide = pad(bits, (2, 5))
    assert np.array_equal(wide[:, :3], bits)
    assert not wide[:, 3:].any()


def test_only_experts_grow_and_only_by_zeros(tmp_path: Path) -> None:
    before = read_bits(model_path() / "model.safetensors")
    folder = wide_model(128, tmp_path)
    after = read_bits(folder / "model.safetensors")
    assert before.keys() == after.keys()
    for name, bits in after.items():
        corner = tuple(slice(size) for size in before[name].shape)
        assert np.array_equal(bits[corner], before[name])
        assert np.count_nonzero(bits) == np.count_nonzero(before[name])
        assert (bits.size == 2 * before[name].size) == (".experts." in name)
    assert json.loads((folder / "config.json").read_text())["moe_intermediate_size"] == 128


def test_logits_are_identical(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from eldr.embedded.export import load_network

    ids = torch.arange(5, 205).view(2, 100)
    with torch.inference_mode():
        narrow = load_network(model_path())(ids)
        wide = load_network(wide_model(512, tmp_path))(ids)
    assert torch.equal(narrow.choices, wide.choices)
    torch.testing.assert_close(narrow.logits, wide.logits, rtol=0, atol=1e-4)


def test_second_call_finds_the_first_ones_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = wide_model(96)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert wide_model(96) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert folder.parent == tmp_path / "eldr"


def test_narrower_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="intermediate size 32 is below the model's 64"):
        wide_model(32, tmp_path)


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text('{"moe_intermediate_size": 64}')
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (source / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    with pytest.raises(ConfigError, match="tensor a is F32"):
        wide_model(128, tmp_path / "cache", source)
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file/embedded-.*; set XDG_CACHE_HOME"):
        wide_model(65, tmp_path / "file")


def test_many_at_once_make_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: wide_model(72, tmp_path), range(4)))
    assert list(tmp_path.iterdir()) == list(folders)
