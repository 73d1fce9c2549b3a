"""One MoE layer in torch, run with a chosen number of active experts and timed. Imported only to measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from eldr.bench.model_shapes import ModelShape
from eldr.errors import ConfigError

GPU_CALLS = 20
"""Calls that are timed together on a GPU."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where it runs. kind: "cpu" or "cuda"; name: of the processor, for the report."""

    kind: str
    name: str
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @classmethod
    def find(cls, wanted: str, cpu_name: str) -> Device:
        """wanted: "cpu", "cuda", or "auto" for a GPU where there is one. ConfigError where there is none.

        bfloat16 as models are served in, but float32 on CPUs, many of which have no bfloat16 arithmetic.
        """
        if wanted == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch sees no CUDA GPU here; use --device cpu")
        if wanted == "cpu" or not torch.cuda.is_available():
            return cls("cpu", f"{cpu_name}, 1 thread", torch.float32)
        return cls("cuda", torch.cuda.get_device_name(), torch.bfloat16)


class MoeLayer:
    """Gated experts with weights [resident, 2 I, H] and [resident, H, I], as checkpoints hold them.

    Where not all experts fit into the memory that may be used, expert e has the weights of e modulo
    `resident`: between two uses of one set of weights the others are read, many times what a cache holds.
    """

    def __init__(self, shape: ModelShape, device: Device, memory_bytes: int) -> None:
        self.shape, self.device = shape, device
        self.expert_bytes = shape.expert_params * device.dtype.itemsize
        self.resident = min(shape.experts, memory_bytes // self.expert_bytes)
        if self.resident < shape.top_k:
            raise ConfigError(
                f"{memory_bytes / 2**30:.1f} GiB hold {self.resident} experts of {shape.name}, "
                f"{shape.top_k} are needed; give --memory-gib"
            )
        if device.kind == "cuda" and self.resident < shape.experts:
            raise ConfigError(f"{shape.name} needs all its experts on a GPU; give --memory-gib")
        options = {"dtype": device.dtype, "device": device.kind}
        # Any value will do, but the pages have to be written, or all of them are one page of zeros.
        self.up = torch.full((self.resident, 2 * shape.inter, shape.hidden), 0.01, **options)
        self.down = torch.full((self.resident, shape.hidden, shape.inter), 0.01, **options)

    def run(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Outputs [B, H] of tokens x [B, H] with the experts [B, k], equally weighted."""
        return self._grouped(x, experts) if self.device.kind == "cuda" else self._one_by_one(x, experts)

    def _grouped(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Two grouped matrix products over tokens sorted by expert: experts without tokens are not read."""
        flat = experts.flatten()
        order = flat.argsort()
        tokens = order // self.shape.top_k
        each = flat[None, :] == torch.arange(self.shape.experts, device=x.device)[:, None]
        ends = each.sum(dim=1).cumsum(0).to(torch.int32)
        hidden = self._gate(F.grouped_mm(x[tokens], self.up.transpose(1, 2), offs=ends))
        out = F.grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)
        return torch.zeros_like(x).index_add_(0, tokens, out).div_(self.shape.top_k)

    def _one_by_one(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """A loop over the active experts, which is what grouped products are on a CPU."""
        flat = experts.flatten()
        order = flat.argsort()
        sizes = flat.bincount(minlength=self.shape.experts).tolist()
        out, start = torch.zeros_like(x), 0
        for expert, size in enumerate(sizes):
            if size:
                tokens, start = order[start : start + size] // self.shape.top_k, start + size
                place = expert % self.resident
                hidden = self._gate(F.linear(x[tokens], self.up[place]))
                out.index_add_(0, tokens, F.linear(hidden, self.down[place]))
        return out.div_(self.shape.top_k)

    @staticmethod
    def _gate(both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up


def choices(shape: ModelShape, tokens: int, active: int, rng: np.random.Generator) -> torch.Tensor:
    """Expert ids [tokens, k] that use exactly `active` experts, drawn anew each time, as evenly as can be.

    Token i has the places i k to i k + k - 1 of a ring of the active experts, so its experts differ, and all
    are active if tokens x k >= active >= k.
    """
    ring = rng.permutation(shape.experts)[:active]
    places = np.arange(tokens * shape.top_k) % active
    return torch.from_numpy(ring[places].reshape(tokens, shape.top_k))


def time_us(layer: MoeLayer, tokens: int, active: int, rng: np.random.Generator) -> float:
    """Microseconds of the layer with so many tokens and active experts, mean over a few calls on a GPU.

    Other active experts in each call, so that none is in a cache because it was just used.
    """
    on_gpu = layer.device.kind == "cuda"
    x = torch.full((tokens, layer.shape.hidden), 0.01, dtype=layer.device.dtype, device=layer.device.kind)
    drawn = [choices(layer.shape, tokens, active, rng) for _ in range(GPU_CALLS if on_gpu else 1)]
    experts = [ids.to(x.device) for ids in drawn]
    return _gpu_us(layer, x, experts) if on_gpu else _cpu_us(layer, x, experts)


def _cpu_us(layer: MoeLayer, x: torch.Tensor, experts: Sequence[torch.Tensor]) -> float:
    """A call's CPU time on one thread: what other programs take of a shared machine is not in it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start = time.thread_time()
        for each in experts:
            layer.run(x, each)
        return (time.thread_time() - start) * 1e6 / len(experts)
    finally:
        torch.set_num_threads(threads)


def _gpu_us(layer: MoeLayer, x: torch.Tensor, experts: Sequence[torch.Tensor]) -> float:
    """A call's time on the device: calls are queued one behind the other, so the host's time is hidden."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for each in experts:
        layer.run(x, each)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / len(experts)
