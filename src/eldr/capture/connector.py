"""EldrConnector: expert capture over the KV connector that moves the KV cache.

    --kv-transfer-config '{"kv_connector": "EldrConnector",
                           "kv_connector_module_path": "eldr.capture.connector",
                           "kv_role": "kv_producer",
                           "kv_connector_extra_config": {"eldr": {"inner": "NixlConnector"}}}'

The engine gets an instance of a class that inherits from the inner connector, so every method that ELDR
does not touch is the inner connector's own, in this version of vLLM and the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
    supports_hma,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from eldr.capture import plugin
from eldr.capture.metrics import EldrPromMetrics, EldrStats
from eldr.capture.mixin import CaptureMixin
from eldr.capture.options import CaptureOptions
from eldr.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_HAND_OFF = ("Nixl", "MoRIIO", "Mooncake")

# Engines that load the connector by its module path have not run the entry point.
plugin.slow_down_nixl()


class EldrConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The name in vLLM's configuration. An instance is one of capture over the configured inner connector."""

    def __new__(
        cls, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> KVConnectorBase_V1:
        """An instance of the capturing class. Raises ConfigError if inner connector and engine do not fit."""
        inner = _inner_of(vllm_config)
        _check(vllm_config, inner)
        return _capturing(inner)(vllm_config, role, kv_cache_config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """The inner connector's."""
        return _inner_of(vllm_config).get_required_kvcache_layout(vllm_config)  # type: ignore[no-any-return]

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """The inner connector's: capture itself runs under full CUDA graphs."""
        inner = _inner_class(CaptureOptions.from_extra_config(extra_config).inner)
        return inner.requires_piecewise_for_cudagraph(extra_config)  # type: ignore[no-any-return]

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """Statistics from what `EldrStats.to_dict` gave."""
        if data is None:
            return EldrStats()
        inner = None
        if data["inner"] is not None:
            inner = _inner_class(data["inner_name"]).build_kv_connector_stats(data["inner"])
        return EldrStats({"eldr": data["eldr"]}, inner, data["inner_name"])

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """ELDR's metrics beside the inner connector's."""
        arguments = (vllm_config, metric_types, labelnames, per_engine_labelvalues)
        inner = _inner_of(vllm_config).build_prom_metrics(*arguments)
        return EldrPromMetrics(*arguments, inner=inner)


def _check(vllm_config: VllmConfig, inner: type[KVConnectorBase_V1]) -> None:
    """What vLLM checks of a connector by its class or name, which here are ours."""
    if not vllm_config.scheduler_config.disable_hybrid_kv_cache_manager and not supports_hma(inner):
        raise ConfigError(
            f"eldr.inner = {inner.__name__!r} does not support the hybrid KV cache manager; "
            "start the engine with --disable-hybrid-kv-cache-manager"
        )
    routed = vllm_config.aux_output_config.enable_return_routed_experts
    if routed and inner.__name__.startswith(_HAND_OFF):
        raise ConfigError(
            f"--enable-return-routed-experts does not go with {inner.__name__}; start the engine without it, "
            "EldrConnector reports the experts itself"
        )


def _inner_of(vllm_config: VllmConfig) -> type[KVConnectorBase_V1]:
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    return _inner_class(CaptureOptions.from_extra_config(extra).inner)


def _inner_class(name: str) -> type[KVConnectorBase_V1]:
    try:
        inner: type[KVConnectorBase_V1] = KVConnectorFactory.get_connector_class_by_name(name)
    except ValueError as error:
        raise ConfigError(f"eldr.inner = {name!r} is not a KV connector that this vLLM knows") from error
    return inner


def _capturing(inner: type[KVConnectorBase_V1]) -> type[KVConnectorBase_V1]:
    # Under MultiConnector, vLLM looks a child's statistics up by its class name.
    return type(EldrConnector.__name__, (CaptureMixin, inner), {"__doc__": f"Capture over {inner.__name__}."})
