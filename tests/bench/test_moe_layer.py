"""The forced routing, the fit and the files; the layer itself against a plain loop where torch is there."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from eldr.bench import moe_layer
from eldr.bench.model_shapes import QWEN3_30B
from eldr.bench.moe_layer import MoeLayerReport, Point, cost_of, forced, layer_run, slug
from eldr.cli import bench
from eldr.errors import ConfigError
from eldr.sim.cost import load_cost

SMALL = replace(QWEN3_30B, experts=16, top_k=2, hidden=8, inter=4)


def points() -> list[Point]:
    """100 us + 10 an active expert + 2 a token, without noise."""
    times = [(t, a, 100.0 + 10 * a + 2 * t) for t, a in forced(QWEN3_30B)]
    return [Point(tokens, active, us, us * 1.1) for tokens, active, us in times]


def report() -> MoeLayerReport:
    run = layer_run(QWEN3_30B, "float32", 3, 2**20, 128, points())
    return MoeLayerReport("Some CPU, 2 cores", "cpu", 32.0, {}, [run])


def test_forced_routings_are_possible() -> None:
    found = list(forced(QWEN3_30B))
    assert (4, 32) in found
    assert (4, 48) not in found
    assert (64, 16) in found
    assert (64, 128) in found
    assert all(8 <= active <= tokens * 8 for tokens, active in found)


def test_the_fit_finds_what_made_the_times() -> None:
    run = report().runs[0]
    assert (run.fixed_us, run.active_us, run.token_us) == pytest.approx((100, 10, 2))
    assert run.r2 == pytest.approx(1)
    assert run.fig2["active 16 to 128 at batch 64"] == pytest.approx((228 + 1280) / (228 + 160))
    assert run.fig2["batch 32 to 128 at 64 active"] == pytest.approx((356 + 640) / (164 + 640))


def test_a_ratio_that_was_not_measured_is_none() -> None:
    few = [point for point in points() if point.tokens < 64]
    assert layer_run(QWEN3_30B, "float32", 3, 1, 1, few).fig2["active 16 to 128 at batch 64"] is None


def test_files_are_written_and_the_simulator_reads_the_cost(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = bench.write(report(), tmp_path)
    assert [path.name for path in paths] == [
        "moe_layer_some-cpu-2-cores.json",
        "cost_some-cpu-2-cores-qwen3-30b-a3b.json",
        "moe_layer_some-cpu-2-cores.svg",
    ]
    assert json.loads(paths[0].read_text())["runs"][0]["model"] == "Qwen3-30B-A3B"
    cost = load_cost(paths[1])
    assert cost == cost_of(report(), report().runs[0])
    assert cost.step_s(64, 32, 0) == pytest.approx(48 * (100 + 640 + 64) * 1e-6)
    assert "<svg" in paths[2].read_text()


def test_models_measured_before_stay_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert moe_layer.with_earlier(report(), path) == report()
    other = msgspec.structs.replace(report().runs[0], model="GPT-OSS-120B")
    old = msgspec.structs.replace(report().runs[0], fixed_us=7.0)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(report(), runs=[old, other])))
    assert moe_layer.with_earlier(report(), path).runs == [other, report().runs[0]]
    elsewhere = msgspec.structs.replace(report(), device="a GPU")
    assert moe_layer.with_earlier(elsewhere, path) == elsewhere


def test_slug() -> None:
    assert slug("NVIDIA H200 (SXM), 1x") == "nvidia-h200-sxm-1x"


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    asked = []

    def measured(shapes, device, repeats, memory_gib, advance):  # type: ignore[no-untyped-def]
        asked.append(([shape.name for shape in shapes], device, repeats, memory_gib))
        advance()
        return report()

    monkeypatch.setattr(bench, "measure", measured)
    arguments = ["moe-layer", "--model", "qwen3-30b-a3b", "--repeats", "2", "--out", str(tmp_path)]
    outcome = CliRunner().invoke(bench.command, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert asked == [(["Qwen3-30B-A3B"], "auto", 2, None)]
    assert "Some CPU, 2 cores (cpu); timed: CPU time of one thread" in outcome.output
    assert len(list(tmp_path.iterdir())) == 3


def test_without_torch_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def progress(*_: object, **__: object) -> None:
        raise AssertionError("began")

    monkeypatch.setitem(sys.modules, "eldr.bench.moe_layer_torch", None)
    monkeypatch.setattr(bench, "Progress", progress)
    with pytest.raises(ConfigError, match=r'needs torch 2\.10 .* install it with: pip install "torch>='):
        CliRunner().invoke(bench.command, ["moe-layer"], catch_exceptions=False)


class TestLayer:
    """With torch."""

    @pytest.fixture
    def side(self):  # type: ignore[no-untyped-def]
        pytest.importorskip("torch")
        from eldr.bench import moe_layer_torch

        return moe_layer_torch

    @pytest.mark.parametrize(("tokens", "active"), [(1, 2), (3, 5), (8, 16), (40, 3)])
    def test_exactly_so_many_experts_are_active(self, side, tokens: int, active: int) -> None:
        ids = side.choices(SMALL, tokens, active, np.random.default_rng(0)).numpy()
        assert ids.shape == (tokens, 2)
        assert len(np.unique(ids)) == active
        assert (ids[:, 0] != ids[:, 1]).all()

    def test_outputs_are_those_of_a_plain_loop(self, side) -> None:
        import torch

        layer = side.MoeLayer(SMALL, side.Device("cpu", "c", torch.float32), 2**20)
        assert layer.resident == 16
        torch.manual_seed(0)
        for weight in (layer.up, layer.down):
            weight.normal_()
        x = torch.randn(5, 8)
        ids = side.choices(SMALL, 5, 7, np.random.default_rng(1))
        expected = torch.zeros(5, 8)
        for token in range(5):
            for expert in ids[token]:
                both = layer.up[expert] @ x[token]
                hidden = torch.nn.functional.silu(both[:4]) * both[4:]
                expected[token] += layer.down[expert] @ hidden / 2
        torch.testing.assert_close(layer.run(x, ids), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer._grouped(x, ids), expected, rtol=1e-4, atol=1e-5)

    def test_fewer_weights_than_experts_are_used_in_turn(self, side) -> None:
        import torch

        cpu = side.Device("cpu", "c", torch.float32)
        layer = side.MoeLayer(SMALL, cpu, 5 * SMALL.expert_params * 4)
        assert layer.resident == 5
        assert layer.run(torch.ones(3, 8), torch.tensor([[0, 15], [4, 9], [7, 2]])).shape == (3, 8)

    def test_times_are_positive(self, side) -> None:
        import torch

        layer = side.MoeLayer(SMALL, side.Device("cpu", "c", torch.float32), 2**20)
        assert side.time_us(layer, 4, 6, np.random.default_rng(0)) > 0

    def test_what_cannot_be_measured_is_refused(self, side) -> None:
        import torch

        cpu = side.Device("cpu", "c", torch.float32)
        with pytest.raises(ConfigError, match="memory-gib"):
            side.MoeLayer(QWEN3_30B, cpu, 2**20)
        with pytest.raises(ConfigError, match="memory-gib"):
            side.MoeLayer(SMALL, side.Device("cuda", "g", torch.bfloat16), 5 * SMALL.expert_params * 2)
        if not torch.cuda.is_available():
            with pytest.raises(ConfigError, match="--device cuda"):
                moe_layer.measure([SMALL], "cuda", 1, None, lambda: None)

    def test_measure_says_what_ran_where(self, side, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = iter([0, *[9] * 4, *[5] * 4, *[7] * 4])  # a warm-up, then three rounds of four routings

        def next_time(layer, tokens, active, rng):  # type: ignore[no-untyped-def]  # noqa: ARG001
            return active + next(calls)

        monkeypatch.setattr(side, "time_us", next_time)
        monkeypatch.setattr(moe_layer, "TOKENS", (4, 8))
        monkeypatch.setattr(moe_layer, "ACTIVE", (4, 8))
        seen = []
        found = moe_layer.measure([SMALL], "cpu", 3, 0.5, lambda: seen.append(1))
        assert len(seen) == 3 * 4
        assert [(p.tokens, p.active) for p in found.runs[0].points] == [(4, 4), (4, 8), (8, 4), (8, 8)]
        assert all((p.least_us, p.median_us) == (p.active + 5, p.active + 7) for p in found.runs[0].points)
        assert found.kind == "cpu"
        assert found.runs[0].dtype == "float32"
        assert "1 thread" in found.device
