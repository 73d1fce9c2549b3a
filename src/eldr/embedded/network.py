"""The network that is trained: Qwen3-MoE with a grouped expert forward that is fast on a CPU.

Parameter names and layouts follow Qwen3MoeForCausalLM, except that the experts of a layer are stacked in one
tensor; `export` splits them. Everything runs in float32: a CPU without bfloat16 instructions is six times
slower in bfloat16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The sizes of the model; lengths in tokens."""

    vocab_size: int = 4096
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    num_experts: int = 64
    top_k: int = 4
    intermediate_size: int = 64
    context: int = 1024
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6


class Output(NamedTuple):
    """What a forward pass gives, for n = batch * sequence tokens."""

    logits: Tensor  # [batch, sequence, vocab]
    router_logits: Tensor  # [layers, n, experts]
    choices: Tensor  # int64 [layers, n, top_k], the experts that each token uses


KeyValue = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):  # type: ignore[misc]
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention with normalised queries and keys and rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, rotary: KeyValue, cache: list[KeyValue] | None) -> Tensor:
        """x [batch, new, hidden] -> the same; `cache` holds the earlier keys and values, gets the new."""
        batch, new, _ = x.shape
        heads = (batch, new, -1, self.shape.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), rotary)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), rotary)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        if cache is not None:
            if cache:
                past_k, past_v = cache.pop()
                k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
            cache.append((k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=new > 1, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, new, -1))


class Experts(nn.Module):  # type: ignore[misc]
    """All experts of one layer; gate and up are one stack, [experts, 2 * intermediate, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        sizes = (shape.num_experts, shape.intermediate_size, shape.hidden_size)
        self.gate_up_proj = nn.Parameter(torch.randn(sizes[0], 2 * sizes[1], sizes[2]) * sizes[2] ** -0.5)
        self.down_proj = nn.Parameter(torch.randn(sizes[0], sizes[2], sizes[1]) * sizes[1] ** -0.5)

    def forward(self, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        """Tokens x [n, hidden] through their chosen experts [n, top_k], summed by `weights` [n, top_k].

        The (token, choice) pairs are sorted by expert, so that every expert is one matrix product.
        """
        n, top_k = choices.shape
        order = choices.flatten().argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(n * top_k))
        ends = torch.bincount(choices.flatten(), minlength=len(self.down_proj)).cumsum(0).to(torch.int32)
        pairs = Permute.apply(x.repeat_interleave(top_k, 0), order, place)
        gate, up = F.grouped_mm(pairs, self.gate_up_proj.transpose(1, 2), offs=ends).chunk(2, -1)
        outs = F.grouped_mm(F.silu(gate) * up, self.down_proj.transpose(1, 2), offs=ends)
        return (Permute.apply(outs, place, order).view(n, top_k, -1) * weights.unsqueeze(-1)).sum(1)


class Permute(torch.autograd.Function):  # type: ignore[misc]
    """Rows in another order. Its gradient is a gather too, where autograd's own would be a slow scatter."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: Tensor, order: Tensor, place: Tensor
    ) -> Tensor:
        ctx.save_for_backward(place)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place), None, None


class MoeBlock(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top_k = shape.top_k
        self.gate = nn.Linear(shape.hidden_size, shape.num_experts, bias=False)
        self.experts = Experts(shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, sequence, hidden] -> the same, router logits [n, experts], choices [n, top_k]."""
        tokens = x.reshape(-1, x.shape[-1])
        router_logits = self.gate(tokens)
        weights, choices = router_logits.softmax(-1).topk(self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        return self.experts(tokens, choices, weights).view_as(x), router_logits, choices


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = MoeBlock(shape)

    def forward(
        self, x: Tensor, rotary: KeyValue, cache: list[KeyValue] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.self_attn(self.input_layernorm(x), rotary, cache)
        mixed, router_logits, choices = self.mlp(self.post_attention_layernorm(x))
        return x + mixed, router_logits, choices


class Network(nn.Module):  # type: ignore[misc]
    """The whole language model; the output layer is the embedding (tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, ids: Tensor, caches: Sequence[list[KeyValue]] | None = None) -> Output:
        """Logits and routing of `ids` [batch, sequence].

        With `caches` (one list a layer, empty at first) the call continues the sequence that they hold: the
        first call takes the prompt, each later one exactly one token.
        """
        past = caches[0][0][0].shape[2] if caches and caches[0] else 0
        rotary = rotary_table(self.shape, past, ids.shape[1])
        x = self.embed_tokens(ids)
        router_logits, choices = [], []
        for index, layer in enumerate(self.layers):
            x, logits, chosen = layer(x, rotary, caches[index] if caches is not None else None)
            router_logits.append(logits)
            choices.append(chosen)
        return Output(
            F.linear(self.norm(x), self.embed_tokens.weight), torch.stack(router_logits), torch.stack(choices)
        )


def rotary_table(shape: Shape, past: int, new: int) -> KeyValue:
    """Cosines and sines [new, head_dim] of the positions past .. past + new."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(past, past + new).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotary: KeyValue) -> Tensor:
    """Rotary position embedding of x [batch, heads, sequence, head_dim], halves as in Hugging Face."""
    first, second = x.chunk(2, -1)
    return x * rotary[0] + torch.cat((-second, first), -1) * rotary[1]
