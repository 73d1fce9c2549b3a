import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.counting import count_experts
from eldr.errors import CalibrationError
from eldr.traces import DecodeIds, ExpertTraces
from eldr.traces.embedded import GATES, RECORDED, embedded, embedded_gates, save, save_gates
from traces.made_up import ids


def made_up(tokens: list[int], layers: int = 3, experts: int = 64, top_k: int = 4) -> ExpertTraces:
    return ExpertTraces(
        model="small",
        source="made up",
        evidence="engine",
        top_k=top_k,
        num_layers=layers,
        layers=np.arange(layers),
        label=np.array(["math", "zh"] * len(tokens))[: len(tokens)],
        prompt_tokens=np.array([n + 1 for n in tokens], np.int32),
        prefill=np.stack([count_experts(ids(n + 1, layers, experts, top_k, n), experts) for n in tokens]),
        ids=DecodeIds.join([ids(n, layers, experts, top_k, n + 9) for n in tokens]),
    )


@settings(max_examples=10)
@given(
    tokens=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    layers=st.integers(1, 4),
    experts=st.sampled_from([4, 64, 256]),
)
def test_a_file_gives_back_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], layers: int, experts: int
) -> None:
    path = tmp_path_factory.mktemp("traces") / "t.npz"
    traces = made_up(tokens, layers, experts)
    benchmark = np.array([f"b{row}" for row in range(len(tokens))])
    save(path, traces, benchmark, {})
    found = embedded(path)
    assert found.ids is not None
    assert traces.ids is not None
    np.testing.assert_array_equal(found.ids.ids, np.sort(traces.ids.ids, axis=2))
    np.testing.assert_array_equal(found.ids.starts, traces.ids.starts)
    np.testing.assert_array_equal(found.prefill, traces.prefill)
    np.testing.assert_array_equal(found.prompt_tokens, traces.prompt_tokens)
    assert found.label.tolist() == traces.label.tolist()
    assert embedded(path, by_benchmark=True).label.tolist() == benchmark.tolist()
    assert (found.model, found.evidence, found.top_k) == ("small", "engine", 4)


def test_workloads(tmp_path: Path) -> None:
    save(tmp_path / "t.npz", made_up([1, 2, 3]), np.array(["x", "y", "z"]), {})
    assert embedded(tmp_path / "t.npz", workload="tasks").label.tolist() == ["math", "math"]
    languages = embedded(tmp_path / "t.npz", workload="languages", by_benchmark=True)
    assert languages.label.tolist() == ["y"]


def test_a_file_that_is_absent_or_does_not_say_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="record_traces"):
        embedded(tmp_path / "t.npz")
    save(tmp_path / "t.npz", made_up([1]), np.array(["x"]), {})
    with np.load(tmp_path / "t.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "t.npz", **{**arrays, "meta": np.array(json.dumps({"model": "m"}))})
    with pytest.raises(CalibrationError, match="record it again"):
        embedded(tmp_path / "t.npz")


@pytest.mark.parametrize("load", [embedded, embedded_gates])
def test_an_installed_package_has_no_recorded_file(
    load: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = tmp_path / "docs" / "data" / "t.npz"
    monkeypatch.setattr("eldr.traces.embedded.RECORDED", absent)
    with pytest.raises(CalibrationError, match=r"t\.npz; .*run from a checkout"):
        load(absent)


def test_the_recorded_file() -> None:
    """Kept in the repository: both workloads, every domain, and small enough to be there."""
    if not RECORDED.is_file():
        pytest.skip("no recorded traces here: they belong to the repository, not to the package")
    assert RECORDED.stat().st_size < 20e6
    traces = embedded()
    assert traces.ids is not None
    assert (traces.num_layers, traces.num_experts, traces.top_k) == (4, 64, 4)
    assert {"code", "math", "medical", "law", "en", "zh", "ru", "fr"} <= set(traces.label)
    assert (traces.prefill.sum(axis=2) == traces.prompt_tokens[:, None] * 4).all()
    assert (np.diff(traces.ids.ids.astype(np.int16), axis=2) > 0).all()  # four different experts, sorted


def test_gates_are_kept_in_half_precision(tmp_path: Path) -> None:
    gates = np.random.default_rng(0).random((3, 2, 4), np.float32) * 100
    save_gates(tmp_path / "g.npz", gates)
    np.testing.assert_allclose(embedded_gates(tmp_path / "g.npz"), gates, rtol=1e-3)
    with pytest.raises(CalibrationError, match="record_gates"):
        embedded_gates(tmp_path / "none.npz")


def test_the_recorded_gates_are_of_the_recorded_requests() -> None:
    if not GATES.is_file():
        pytest.skip("no recorded gates here: they belong to the repository, not to the package")
    gates = embedded_gates()
    tokens = embedded().prompt_tokens[: len(gates)]
    np.testing.assert_allclose(gates.sum(axis=2), tokens[:, None].repeat(4, axis=1), rtol=1e-2)
