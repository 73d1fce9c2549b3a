"""The count cache: how often each expert was chosen, for every block of the KV cache (the paper's signature
cache).

It is indexed as the KV cache is, so a prefix hit, a full hit and an eviction need no state of their own:
whoever holds a block holds its counts. Everything here is tensor operations without a host synchronisation,
so that it can be queued behind a CUDA graph; a step is always `clear` -> `add` -> `total`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

UNSEEN = -1
"""Value of an expert id that no capture hook has written in this step."""


class CountCache:
    """Counts per KV block, MoE layer and expert.

    Args:
        num_blocks: blocks of the KV cache, B.
        block_size: tokens a block.
        num_layers: MoE layers, L.
        num_experts: logical experts, E.
        device: where the routing ids are.

    An expert is chosen at most once a token, so a count is at most `block_size`, and one byte holds it up
    to 255.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_layers: int, num_experts: int, device: torch.device | str
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_layers, self.num_experts = num_layers, num_experts
        dtype = torch.uint8 if block_size <= 255 else torch.int16
        # One block more than the KV cache has: rows without a slot (padding) are counted there.
        self.counts = torch.zeros((num_blocks + 1, num_layers, num_experts), dtype=dtype, device=device)
        self._layer_offset = torch.arange(num_layers, device=device).view(1, -1, 1) * num_experts

    @property
    def block_bytes(self) -> int:
        """Bytes that the cache takes for one KV block."""
        return self.num_layers * self.num_experts * int(self.counts.element_size())

    def clear(self, blocks: Sequence[int]) -> None:
        """Forgets the counts of `blocks`: they were handed to new tokens, or filled from elsewhere."""
        if blocks:
            self.counts[self._on_device(blocks)] = 0

    def add(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """Counts one step's choices.

        Args:
            slots: int64 [n], KV slot of each row (block * block_size + offset); negative for padding rows.
            ids: integer [n, L, k], logical expert ids; UNSEEN entries count nothing.
        """
        block = torch.where(slots >= 0, slots // self.block_size, self.num_blocks)
        flat = (
            block.view(-1, 1, 1) * (self.num_layers * self.num_experts)
            + self._layer_offset
            + ids.clamp(min=0)
        )
        seen = (ids >= 0).to(self.counts.dtype)
        self.counts.view(-1).scatter_add_(0, flat.reshape(-1), seen.reshape(-1))

    def total(self, blocks: Sequence[int]) -> torch.Tensor:
        """int32 [L, E]: the sum over `blocks`."""
        return self.counts[self._on_device(blocks)].sum(dim=0, dtype=torch.int32)

    def _on_device(self, blocks: Sequence[int]) -> torch.Tensor:
        return to_device(blocks, self.counts.device)


def active_experts(slots: torch.Tensor, ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Distinct experts that one step activates, per layer.

    Args:
        slots: int64 [n]; negative for padding rows, which activate nothing.
        ids: integer [n, L, k].

    Returns:
        int32 [L].
    """
    column = torch.where((slots >= 0).view(-1, 1, 1), ids, UNSEEN) + 1  # column 0 takes what does not count
    by_layer = column.transpose(0, 1).reshape(ids.shape[1], -1).long()
    hit = torch.zeros((ids.shape[1], num_experts + 1), dtype=torch.uint8, device=ids.device)
    return hit.scatter_(1, by_layer, 1)[:, 1:].sum(dim=1, dtype=torch.int32)


def unseen_choices(slots: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """int32 scalar: choices of real rows that no hook wrote. Anything but 0 means that capture is broken."""
    return ((ids < 0) & (slots >= 0).view(-1, 1, 1)).sum(dtype=torch.int32)


def rows_of(slots: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """int64 [len(wanted)]: the row of the step that wrote each wanted slot (each occurs once)."""
    return (slots.view(1, -1) == to_device(wanted, slots.device).view(-1, 1)).int().argmax(dim=1)


def to_device(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """int64 tensor of `values` on `device`, copied without waiting for the device."""
    host = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
