import sys

import numpy as np
import pytest

from eldr.bench import plots
from eldr.bench.results import PolicyRun
from eldr.bench.scrape import Sample, Steps
from eldr.bench.signature_map import project
from eldr.errors import ConfigError

from .made_up import LABELS, run, steps


def signatures(rng: np.random.Generator) -> np.ndarray:
    made = np.repeat(np.eye(3, 8), 20, axis=0) + rng.normal(scale=0.1, size=(60, 8))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def test_every_plot_is_written(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    runs = [run("round_robin", 20.0, 0.012), run("jsq", 19.5, 0.011), run("locality_band", 16.0, 0.010)]
    runs += [run(r.policy, r.active_experts + 0.3, 0.012, repeat=1) for r in runs]
    points = signatures(np.random.default_rng(0))
    space = project(points, np.repeat(LABELS, 20).tolist(), points[[0, 25]], ["d0", "d1"])
    paths = plots.plot_all(runs, space, tmp_path)
    assert sorted(path.name for path in paths) == [
        "active_experts.png",
        "placement.png",
        "policies.png",
        "signatures.png",
    ]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"eldr\[plot\]"):
        plots.plot_all([], None, tmp_path)  # type: ignore[arg-type]


def test_the_rolling_mean_is_over_the_window_only() -> None:
    counters = [Steps(), steps(10, 100), steps(10, 100) + steps(20, 100), steps(10, 100) + steps(20, 100)]
    samples = [
        Sample(float(at), worker, steps) for at, steps in enumerate(counters) for worker in ("d0", "d1")
    ]
    made = PolicyRun("jsq", 0, [], {}, samples)
    assert plots.rolling_active(made, 1.0) == ([1.0, 2.0], [pytest.approx(10), pytest.approx(20)])
    assert plots.rolling_active(made, 2.0) == ([2.0, 3.0], [pytest.approx(15), pytest.approx(20)])


def test_placement_shares_sum_to_one_a_label() -> None:
    share = plots.placement_shares(run("locality_band", 10, 0.01), LABELS)
    np.testing.assert_allclose(share, [[1, 0], [0, 1], [1, 0]])


def test_the_projection_keeps_distances_in_a_plane() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(30, 2)) @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T + rng.normal(size=6)
    space = project(flat.astype(np.float32), [""] * 30, flat[:2].astype(np.float32), ["d0", "d1"])
    np.testing.assert_allclose(space.centroids, space.points[:2], atol=1e-5)
    for a, b in [(0, 5), (3, 9)]:
        assert np.linalg.norm(space.points[a] - space.points[b]) == pytest.approx(
            np.linalg.norm(flat[a] - flat[b]), rel=1e-4
        )
    assert sum(space.explained) == pytest.approx(1.0)
    assert space.explained[0] >= space.explained[1]
