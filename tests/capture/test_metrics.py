"""Statistics on their way to /metrics, and how vLLM finds the connector's class."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from eldr.capture import plugin
from eldr.errors import ConfigError
from support.later import Later

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

factory = Later("vllm.distributed.kv_transfer.kv_connector.factory")
base = Later("vllm.distributed.kv_transfer.kv_connector.v1.base")
nixl = Later("vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats")
func_utils = Later("vllm.utils.func_utils")
connector = Later("eldr.capture.connector")
metrics = Later("eldr.capture.metrics")


def tally(*steps: list[int]) -> dict[str, Any]:
    return {
        "layers": [1, 3],
        "active": list(steps),
        "steps": {"decode": len(steps), "mixed": 1},
        "payloads": {"complete": 2},
        "unseen": 5,
    }


def nixl_stats(duration: float) -> nixl.NixlKVConnectorStats:
    stats = nixl.NixlKVConnectorStats()
    stats.data["transfer_duration"].append(duration)
    for key in ("post_duration", "bytes_transferred", "num_descriptors"):
        stats.data[key].append(1)
    return stats


def test_worker_and_scheduler_statistics_add_up_and_survive_the_way_to_the_front_end() -> None:
    worker = metrics.EldrStats({"eldr": []}, nixl_stats(0.5), "NixlConnector")
    scheduler = metrics.EldrStats({"eldr": [tally([2, 4])]}, None, "NixlConnector")
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(worker.aggregate(scheduler).to_dict()))
    again = connector.EldrConnector.build_kv_connector_stats(sent)
    assert isinstance(again.inner, nixl.NixlKVConnectorStats)
    assert again.inner.data["transfer_duration"] == [0.5]
    assert again.tallies == [tally([2, 4])]

    both = again.aggregate(metrics.EldrStats({"eldr": [tally([6, 8])]}, nixl_stats(1.5), "NixlConnector"))
    assert both.inner.num_successful_transfers == 2
    line = both.reduce()
    assert line["Active experts per decode step and layer"] == 5.0
    assert line["Num successful transfers"] == 2
    both.reset()
    assert both.is_empty()


def test_statistics_without_an_inner_connector_s() -> None:
    empty = connector.EldrConnector.build_kv_connector_stats()
    assert empty.is_empty()
    assert empty.reduce() == {}
    assert empty.aggregate(metrics.EldrStats({"eldr": [tally([1, 1])]})).inner is None


def test_prometheus() -> None:
    seen: list[Any] = []
    inner = SimpleNamespace(observe=lambda data, index: seen.append((data, index)))
    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    config = SimpleNamespace(kv_transfer_config=None)
    prom = metrics.EldrPromMetrics(config, types, ["model_name", "engine"], {0: ["m", "0"]}, inner=inner)
    prom.observe({"inner": {"x": 1}, "inner_name": "n", "eldr": [tally([2, 4], [3, 5])]}, 0)
    prom.observe({"inner": None, "inner_name": "n", "eldr": []}, 0)

    def value(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})

    assert value("eldr_active_experts_sum", layer="1") == 5
    assert value("eldr_active_experts_sum", layer="3") == 9
    assert value("eldr_active_experts_count", layer="3") == 2
    assert value("eldr_steps_total", kind="decode") == 2
    assert value("eldr_steps_total", kind="mixed") == 1
    assert value("eldr_payloads_total", outcome="complete") == 2
    assert value("eldr_unseen_choices_total") == 5
    assert seen == [({"x": 1}, 0)]


def config(inner: str, *, routed: bool = False) -> Any:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"eldr": {"inner": inner}}),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        aux_output_config=SimpleNamespace(enable_return_routed_experts=routed),
    )


def test_what_vllm_asks_of_the_class() -> None:
    assert func_utils.supports_kw(connector.EldrConnector, "kv_cache_config")
    assert base.supports_hma(connector.EldrConnector)
    assert connector.EldrConnector.requires_piecewise_for_cudagraph({}) is False


def test_an_unknown_inner_connector_is_named() -> None:
    with pytest.raises(ConfigError, match="'NoConnector' is not a KV connector"):
        connector.EldrConnector(config("NoConnector"), base.KVConnectorRole.WORKER, None)


def test_an_inner_connector_without_hybrid_cache_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--disable-hybrid-kv-cache-manager"):
        connector.EldrConnector(config("ExampleConnector"), base.KVConnectorRole.WORKER, None)


def test_vllm_s_own_routed_experts_do_not_go_with_a_hand_off() -> None:
    with pytest.raises(ConfigError, match="--enable-return-routed-experts does not go with Nixl"):
        connector.EldrConnector(config("NixlConnector", routed=True), base.KVConnectorRole.WORKER, None)


def test_the_entry_point_may_run_again() -> None:
    plugin.register()
    plugin.register()
    assert factory.KVConnectorFactory.get_connector_class_by_name("EldrConnector") is connector.EldrConnector


def test_nixl_s_progress_thread_sleeps_only_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def agent(name: str, config: Any) -> None:
        made.append((name, config.pthrDelay))

    bindings = SimpleNamespace(nixlAgent=agent)
    monkeypatch.setitem(sys.modules, "nixl._api", SimpleNamespace(nixlBind=bindings))
    monkeypatch.delenv(plugin.PROGRESS_DELAY, raising=False)
    plugin.slow_down_nixl()
    assert bindings.nixlAgent is agent

    monkeypatch.setenv(plugin.PROGRESS_DELAY, "500")
    plugin.slow_down_nixl()
    wrapped = bindings.nixlAgent
    plugin.slow_down_nixl()
    assert bindings.nixlAgent is wrapped
    wrapped("worker", SimpleNamespace(pthrDelay=0))
    assert made == [("worker", 500)]


@pytest.mark.parametrize("has_amx", [True, False])
def test_the_matrix_unit_is_asked_for_where_there_is_one(
    has_amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: has_amx)
    monkeypatch.setattr("torch.cpu._init_amx", lambda: asked.append(True))
    plugin.allow_amx()
    assert asked == [True] * has_amx
