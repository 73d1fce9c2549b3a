"""The capture side of a connector, in front of any inner connector by cooperative inheritance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.v1.kv_cache_interface import FullAttentionSpec, UniformTypeKVCacheSpecs

from eldr.capture.metrics import EldrStats
from eldr.capture.options import CaptureOptions
from eldr.capture.plan import PendingReport, merge
from eldr.capture.scheduler import SchedulerSide
from eldr.capture.worker import WorkerSide
from eldr.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

Params = dict[str, Any]


@dataclass
class EldrWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """A worker's report, around what the inner connector's worker reports."""

    inner: KVConnectorWorkerMetadata | None = None
    reports: list[PendingReport] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> EldrWorkerMetadata:
        """Both workers' reports."""
        assert isinstance(other, EldrWorkerMetadata)
        inner = self.inner or other.inner
        if self.inner is not None and other.inner is not None:
            inner = self.inner.aggregate(other.inner)
        return EldrWorkerMetadata(inner, self.reports + other.reports)


class CaptureMixin(KVConnectorBase_V1):  # type: ignore[misc]
    """Every hook does the inner connector's work first, or passes it the part that is its own."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = CaptureOptions.from_extra_config(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._eldr_inner_name = options.inner
        self._eldr_group = count_group(vllm_config, kv_cache_config)
        if role == KVConnectorRole.WORKER:
            self._eldr_worker = WorkerSide(vllm_config, kv_cache_config, self._eldr_group)
            return
        model = vllm_config.model_config
        self._eldr_scheduler = SchedulerSide(
            options,
            group=self._eldr_group,
            block_size=kv_cache_config.kv_cache_groups[self._eldr_group].kv_cache_spec.block_size,
            top_k=model.get_num_experts_per_tok(),
            num_experts=model.get_num_experts(),
            speculative=vllm_config.speculative_config is not None,
        )

    # Scheduler's process

    def on_new_request(self, request: Request) -> None:
        """A request came in."""
        super().on_new_request(request)
        self._eldr_scheduler.arrived(request)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Blocks were handed out; those without a hash have no known content."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._eldr_scheduler.allocated(blocks.get_unhashed_block_ids_all_groups()[self._eldr_group])

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The inner connector's metadata with our plan on it: connectors check its type, not its
        attributes.
        """
        metadata = super().build_connector_meta(scheduler_output)
        metadata.eldr_plan = self._eldr_scheduler.plan(scheduler_output)
        return metadata

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, Params | None]:
        """A request ended, in an engine with one KV cache group."""
        delay_free, params = super().request_finished(request, block_ids)
        return delay_free, self._eldr_scheduler.finished(request, params)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, Params | None]:
        """A request ended, where the inner connector supports the hybrid KV cache manager."""
        delay_free, params = super().request_finished_all_groups(request, block_ids)
        return delay_free, self._eldr_scheduler.finished(request, params)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """The workers' report of the step."""
        metadata = connector_output.kv_connector_worker_meta
        reports: list[PendingReport] = []
        if isinstance(metadata, EldrWorkerMetadata):
            reports = metadata.reports
            connector_output.kv_connector_worker_meta = metadata.inner
        try:
            super().update_connector_output(connector_output)
        finally:
            connector_output.kv_connector_worker_meta = metadata
        self._eldr_scheduler.consume(merge(reports) if reports else None)

    # Worker's process

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The KV cache exists, CUDA graphs do not yet: the moment to hook the routers."""
        super().register_kv_caches(kv_caches)
        self._eldr_worker.bind()

    def reset_capture_state(self) -> None:
        """CUDA graphs have been captured."""
        super().reset_capture_state()
        self._eldr_worker.forget_dry_runs()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)
        self._eldr_worker.begin(getattr(connector_metadata, "eldr_plan", None))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Model runner V2 passes the attention metadata here."""
        super().start_load_kv(forward_context, **kwargs)
        self._eldr_worker.begin_load(kwargs.get("attn_metadata"))

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """The forward pass has been queued: collect."""
        inner = super().build_connector_worker_meta()
        report = self._eldr_worker.collect()
        if inner is None and report is None:
            return None
        return EldrWorkerMetadata(inner, [report] if report is not None else [])

    # Either

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """The inner connector's statistics, and in the scheduler's process the tally of the step."""
        inner = super().get_kv_connector_stats()
        tally = self._eldr_scheduler.tally.take() if self.role == KVConnectorRole.SCHEDULER else None
        if inner is None and tally is None:
            return None
        return EldrStats({"eldr": [tally] if tally is not None else []}, inner, self._eldr_inner_name)

    def shutdown(self) -> None:
        """Ends the inner connector, then the step log."""
        super().shutdown()
        if self.role == KVConnectorRole.SCHEDULER:
            self._eldr_scheduler.tally.close()


def count_group(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """Index of the KV cache group whose blocks the counts go with: one with full attention, which keeps
    every token.

    Raises:
        ConfigError: there is no such group, or context parallelism spreads a block over ranks.
    """
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ConfigError("EldrConnector does not support context parallelism (DCP or PCP above 1)")
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        if isinstance(spec, UniformTypeKVCacheSpecs):
            spec = next(iter(spec.kv_cache_specs.values()))
        if isinstance(spec, FullAttentionSpec) and not group.is_eagle_group:
            return index
    raise ConfigError(
        f"EldrConnector: {vllm_config.model_config.model} has no full-attention layer, "
        "so no KV block keeps its tokens"
    )
