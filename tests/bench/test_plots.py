import sys

import numpy as np
import pytest

from eldr.bench import plots
from eldr.bench.results import PolicyRun, rows
from eldr.bench.signature_map import project
from eldr.bench.steplog import Step
from eldr.errors import ConfigError

from .made_up import LABELS, run


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


def test_where_times_say_nothing_none_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    table = rows([run("jsq", 19.5, 0.011), run("soft_locality", 16.0, 0.010)])
    plt = plots.pyplot()
    for times, panels in ((True, 2), (False, 1)):
        figure = plots.policy_bars(plt, table, times=times)
        assert len(figure.axes) == panels
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert names == [f"{entry.policy}\nbatch {entry.mean_batch:.1f}" for entry in table]
        plt.close(figure)


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"\.\[plot\]"):
        plots.plot_all([], None, tmp_path)  # type: ignore[arg-type]


def test_the_rolling_mean_is_over_steps_within_the_window() -> None:
    log = [Step(0.0, "d0", 4, 10.0), Step(0.2, "d1", 4, 20.0), Step(1.0, "d0", 4, 6.0)]
    times, means = plots.rolling_active(PolicyRun("jsq", 0, [], {}, log), window_s=0.5)
    np.testing.assert_allclose(times, [0.0, 0.25, 0.75, 1.0])  # nothing ran within 0.25 s of 0.5 s
    np.testing.assert_allclose(means, [15.0, 15.0, 6.0, 6.0])


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
