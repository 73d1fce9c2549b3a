"""The worker's side: turns the routing buffer of each step into counts, after the forward pass has been
queued.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import ForwardContext, get_forward_context, is_forward_context_available

from eldr.capture import routing
from eldr.capture.counts import CountCache, active_experts, rows_of, to_device, unseen_choices
from eldr.capture.plan import PendingReport, StepArrays, StepPlan

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("vllm.eldr")


class WorkerSide:
    """Capture in one worker process. `bind` once, then `begin` -> forward -> `collect` each step.

    Only the first tensor-parallel rank keeps counts: all ranks route the same tokens alike.
    """

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, group: int) -> None:
        self._config, self._kv_cache = vllm_config, kv_cache_config
        self._group = kv_cache_config.kv_cache_groups[group]
        self._plan: StepPlan | None = None
        self._slots: torch.Tensor | None = None
        self._counts: CountCache | None = None
        self._capturer: routing.MoECapturer | None = None
        self._layer_ids: tuple[int, ...] = ()

    def bind(self) -> None:
        """Hooks the MoE layers. Called when the KV cache exists and no CUDA graph has been captured yet.

        Raises:
            ConfigError: the model has no MoE layer.
        """
        counting = get_tp_group().rank_in_group == 0
        if not counting and not self._config.parallel_config.use_sequence_parallel_moe:
            return  # under sequence parallelism the hook gathers over the ranks: all of them take part
        layers = routing.moe_layers(self._config)
        self._layer_ids = tuple(layer.layer_id for layer in layers)
        self._capturer = routing.MoECapturer(self._config, self._layer_ids)
        routing.bind(layers, self._capturer)
        if counting:
            self._counts = CountCache(
                self._kv_cache.num_blocks,
                self._group.kv_cache_spec.block_size,
                len(layers),
                self._config.model_config.get_num_experts(),
                self._capturer.device_buffer.device,
            )
            logger.info(
                "ELDR: counting %d experts in %d MoE layers: %d bytes a KV block, %.1f MiB",
                self._counts.num_experts,
                len(layers),
                self._counts.block_bytes,
                self._counts.block_bytes * self._kv_cache.num_blocks / 2**20,
            )

    def begin(self, plan: StepPlan | None) -> None:
        """Takes the step's plan, and its slot mapping from the forward context.

        The context is open except in model runner V2 under full CUDA graphs.
        """
        self._plan, self._slots = plan, None
        if is_forward_context_available():
            self._slots = self._find_slots(get_forward_context())

    def begin_load(self, attn_metadata: Mapping[str, Any] | None) -> None:
        """Takes the slot mapping from what model runner V2 passes under full CUDA graphs."""
        if self._slots is None and attn_metadata:
            metadata = attn_metadata.get(self._group.layer_names[0])
            self._slots = getattr(metadata, "slot_mapping", None)

    def forget_dry_runs(self) -> None:
        """CUDA graphs have been captured: what their dry runs wrote is no choice of a request."""
        if self._capturer is not None:
            self._capturer.reset(len(self._capturer.device_buffer))

    def collect(self) -> PendingReport | None:
        """Counts the step's choices and starts the copies to the host; None where there is nothing to say."""
        plan, slots, self._plan, self._slots = self._plan, self._slots, None, None
        if self._counts is None or self._capturer is None or plan is None:
            return None
        self._counts.clear(plan.fresh)
        if slots is None or plan.requests == 0:
            return None
        slots = slots[: len(self._capturer.device_buffer)]
        ids = self._capturer.device_buffer[: len(slots)]
        report = self._report(self._counts, plan, slots, ids)
        self._capturer.reset(len(slots))
        return report

    def _report(
        self, cache: CountCache, plan: StepPlan, slots: torch.Tensor, ids: torch.Tensor
    ) -> PendingReport:
        cache.add(_without(slots, plan.uncounted), ids)
        if plan.kind == "prefill":  # nobody asks which experts a prefill touches, and it has many rows
            active = torch.zeros(cache.num_layers, dtype=torch.int32, device=ids.device)
        else:
            active = active_experts(slots, ids, cache.num_experts)
        header = torch.cat([active, unseen_choices(slots, ids).view(1)])
        totals = [cache.total(final.blocks) for final in plan.finals]
        shape = (0, cache.num_layers, cache.num_experts)
        counts = torch.stack(totals) if totals else torch.zeros(shape, dtype=torch.int32)
        wanted = [slot for traced in plan.traced for slot in traced.slots]
        traced_ids = ids[rows_of(slots, wanted)] if wanted else ids[:0]
        copies = HostCopies(header, counts, traced_ids.to(torch.int16))
        return PendingReport(plan, self._layer_ids, copies.arrays)

    def _find_slots(self, context: ForwardContext) -> torch.Tensor | None:
        mapping = context.slot_mapping
        name = self._group.layer_names[0]
        if isinstance(mapping, list):  # dual-batch overlap: one mapping a microbatch
            return torch.cat([part[name] for part in mapping]) if mapping else None
        return mapping.get(name) if mapping else None


def _without(slots: torch.Tensor, uncounted: list[int]) -> torch.Tensor:
    if not uncounted:
        return slots
    skipped = torch.isin(slots, to_device(uncounted, slots.device))
    return torch.where(skipped, -1, slots)


class HostCopies:
    """A step's device tensors on their way to the host; `arrays` waits for them if it must."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event = None
        self._host = [self._copy(tensor) for tensor in tensors]
        if any(tensor.is_cuda for tensor in tensors):
            self._event = torch.cuda.Event()
            self._event.record()

    @staticmethod
    def _copy(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return tensor
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    def arrays(self) -> StepArrays:
        """The tensors as numpy arrays."""
        if self._event is not None:
            self._event.synchronize()
        header, counts, ids = (tensor.numpy() for tensor in self._host)
        return header, counts, ids
