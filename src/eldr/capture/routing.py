"""Finds the MoE layers of the running model and binds vLLM's own routing hook to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
    RoutedExpertsCapturer,
    bind_routed_experts_capturer,
)

from eldr.capture.counts import UNSEEN
from eldr.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CaptureFn = Callable[[torch.Tensor], None]


def moe_layers(vllm_config: VllmConfig) -> list[MoERunner]:
    """The MoE layers that this worker runs, by global layer index.

    Dense layers are not MoERunners; layers past the model's own (MTP and other draft heads) are left out.

    Raises:
        ConfigError: the model has no MoE layer that vLLM's hook reaches.
    """
    model = vllm_config.model_config
    last = model.get_total_num_hidden_layers()
    layers = vllm_config.compilation_config.static_forward_context.values()
    found = [layer for layer in layers if isinstance(layer, MoERunner) and layer.layer_id < last]
    if not found:
        raise ConfigError(
            f"EldrConnector: {model.model} has no mixture-of-experts layer that vLLM can report; "
            "start this engine with its plain KV connector"
        )
    return sorted(found, key=lambda layer: layer.layer_id)


class MoECapturer(RoutedExpertsCapturer):  # type: ignore[misc]
    """vLLM's capturer, with rows only for the MoE layers that exist here.

    `device_buffer` is int32 [max tokens a step, L, k], a static buffer that CUDA graphs may write to. It
    holds UNSEEN wherever no hook fired since the last `reset`: a hook that was compiled away would
    otherwise read as expert 0.
    """

    device_buffer: torch.Tensor

    def __init__(self, vllm_config: VllmConfig, layer_ids: Sequence[int]) -> None:
        super().__init__(vllm_config.scheduler_config.max_num_batched_tokens, vllm_config)
        self._row = {layer_id: row for row, layer_id in enumerate(layer_ids)}
        self.device_buffer = self.device_buffer[:, : len(layer_ids)].contiguous()
        self.reset(len(self.device_buffer))

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """Called by vLLM's router with logical ids [n, k], before any load-balancing map (EPLB)."""
        super().capture(self._row[layer_id], topk_ids)

    def reset(self, num_rows: int) -> None:
        """Makes the first rows unseen again, after a step has been collected."""
        self.device_buffer[:num_rows].fill_(UNSEEN)


def bind(layers: Sequence[MoERunner], capturer: MoECapturer) -> None:
    """Hooks the capturer to the layers' routers; a hook that was there before still runs, first."""
    before = [getattr(layer.router, "capture_fn", None) for layer in layers]
    bind_routed_experts_capturer(torch.nn.ModuleList(layers), capturer)
    for layer, earlier in zip(layers, before, strict=True):
        if earlier is not None:
            layer.router.set_capture_fn(_both(earlier, layer.router.capture_fn))


def _both(first: CaptureFn, second: CaptureFn) -> CaptureFn:
    def capture(topk_ids: torch.Tensor) -> None:
        first(topk_ids)
        second(topk_ids)

    return capture
