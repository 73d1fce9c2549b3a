"""The parts of a decode step's cost, fitted to measured latencies or derived where nobody measured them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eldr.bench import latency_tables as tables
from eldr.bench.latency_tables import MoeLatencies
from eldr.bench.model_shapes import GEMMA4_26B, GPT_OSS_120B, PEAK_BYTES_PER_S, QWEN3_30B, ModelShape
from eldr.sim.cost import Attention, Fit, Rest
from eldr.sim.fitting import LinearFit, fit_linear, fit_moe, solve

MOST_TOKENS = 256
"""Largest decode batch that costs are fitted to."""

TABLES = {"H200": "h200_sxm", "H100": "h100_sxm"}
VLLM = "aiconfigurator-core 0.12.0 (Apache-2.0), vLLM 0.24"
SGLANG = "aiconfigurator-core 0.12.0 (Apache-2.0), sglang 0.5.10"
SMALL = "norms, rotary embedding and sampling: as on an RTX PRO 6000"
FORCED = "casys-kaist/LLMServingSim (MIT), vLLM 0.19, forced routing"


@dataclass(frozen=True, slots=True)
class MoeSource:
    """Where the MoE layer of a GPU and model was measured. most_tokens: larger batches are left out."""

    gpu: str
    shape: ModelShape
    table: str | None
    source: str
    most_tokens: int = MOST_TOKENS

    def read(self, folder: Path) -> MoeLatencies:
        if self.table is None:
            return tables.read_forced(folder).up_to(self.most_tokens)
        return tables.read_moe(folder, self.table, self.shape).up_to(self.most_tokens)


SOURCES = (
    MoeSource("H200", QWEN3_30B, "h200_sxm/moe/vllm/0.24.0", VLLM),
    MoeSource("H200", GPT_OSS_120B, "h200_sxm/moe/vllm/0.24.0", VLLM),
    MoeSource("H200", GEMMA4_26B, "h200_sxm/moe/vllm/0.24.0", VLLM),
    MoeSource("H100", QWEN3_30B, "h100_sxm/moe/vllm/0.24.0", VLLM),
    MoeSource("H100", GPT_OSS_120B, "h100_sxm/moe/vllm/0.24.0", VLLM),
    MoeSource("H100", GEMMA4_26B, "h100_sxm/moe/vllm/0.24.0", VLLM),
    MoeSource("A100", QWEN3_30B, "a100_sxm/moe/sglang/0.5.10", SGLANG, most_tokens=128),
    MoeSource("RTX PRO 6000", QWEN3_30B, None, FORCED),
    MoeSource("RTX PRO 6000", GPT_OSS_120B, "rtx_pro_6000_server/moe/vllm/0.24.0", VLLM),
    MoeSource("RTX PRO 6000", GEMMA4_26B, "rtx_pro_6000_server/moe/vllm/0.24.0", VLLM),
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Fits from the tables in a folder."""

    folder: Path

    def moe(self, source: MoeSource) -> LinearFit:
        """a0, a1, b of one layer."""
        measured = source.read(self.folder)
        return fit_moe(measured.active, measured.tokens, measured.latency_us)

    def attention(self, gpu: str, shape: ModelShape) -> tuple[Attention, list[Fit]]:
        """Measured for this GPU and shape, or else what reads as many bytes of KV cost Qwen3-30B."""
        if gpu == "RTX PRO 6000" and shape is QWEN3_30B:
            fit = _attention_fit(*tables.read_rtx_attention(self.folder))
            return _attention(shape.layers, fit), [fitted("attention", FORCED, fit)]
        if gpu in TABLES and shape is QWEN3_30B:
            fit = _attention_fit(*tables.read_attention(self.folder, TABLES[gpu], 32, 128, 0))
            return _attention(shape.layers, fit), [fitted("attention", VLLM, fit)]
        if gpu in TABLES and shape is GPT_OSS_120B:
            return self._attention_with_window(gpu, shape)
        return self._derived_attention(gpu, shape)

    def _attention_with_window(self, gpu: str, shape: ModelShape) -> tuple[Attention, list[Fit]]:
        """GPT-OSS: every other layer sees 128 tokens, which a decode batch has nearly always."""
        fits = [
            _attention_fit(*tables.read_attention(self.folder, TABLES[gpu], 64, 64, w))
            for w in (0, shape.window)
        ]
        full, window = (_attention(shape.layers // 2, fit) for fit in fits)
        total = Attention(
            fixed_us=full.fixed_us + window.fixed_us,
            sequence_us=full.sequence_us + window.sequence_us,
            context_us=full.context_us + window.context_us,
        )
        return total, [fitted("attention", VLLM, fits[0]), fitted("window attention", VLLM, fits[1])]

    def _derived_attention(self, gpu: str, shape: ModelShape) -> tuple[Attention, list[Fit]]:
        h200, _ = self.attention("H200", QWEN3_30B)
        slower = PEAK_BYTES_PER_S["H200"] / PEAK_BYTES_PER_S[gpu]
        byte_us = h200.context_us / QWEN3_30B.full_kv_bytes * slower
        layers = shape.layers / QWEN3_30B.layers
        window_us = byte_us * shape.window * shape.window_kv_bytes / shape.ranks
        attention = Attention(
            fixed_us=h200.fixed_us * layers,
            sequence_us=h200.sequence_us * layers + window_us,
            context_us=byte_us * shape.full_kv_bytes / shape.ranks,
        )
        text = "derived: time a byte of KV of Qwen3-30B on an H200, by memory bandwidth"
        return attention, [Fit(part="attention", source=text)]

    def rest(self, gpu: str, shape: ModelShape) -> tuple[Rest, Fit]:
        """Projections, norms, head and sampling of a step."""
        if gpu == "RTX PRO 6000" and shape is QWEN3_30B:
            return self.measured_rest(), Fit(part="rest", source=FORCED)
        if gpu in TABLES and shape is QWEN3_30B:
            text = f"projections: {VLLM}; head: by bandwidth; {SMALL}"
            return self.gemm_rest(gpu), Fit(part="rest", source=text)
        text = f"derived: weights beside the experts by bandwidth; {SMALL}"
        return self.derived_rest(gpu, shape), Fit(part="rest", source=text)

    def measured_rest(self) -> Rest:
        """Qwen3-30B on an RTX PRO 6000."""
        parts = {name: _per_token(*part) for name, part in tables.read_rtx_parts(self.folder).items()}
        layer = ("layernorm", "layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj")
        once = ("embedding", "final_layernorm", "lm_head", "sampler")
        total = QWEN3_30B.layers * _sum(parts[p] for p in layer) + _sum(parts[p] for p in once)
        return Rest(fixed_us=float(total[0]), token_us=float(total[1]))

    def gemm_rest(self, gpu: str) -> Rest:
        """Qwen3-30B with measured projections."""
        gemms = ((5120, 2048), (2048, 4096), (128, 2048))  # queries, keys and values; output; router
        layer = _sum(_per_token(*tables.read_gemm(self.folder, TABLES[gpu], n, k)) for n, k in gemms)
        head_us = 151_936 * 2048 * 2 / self.bytes_per_us(gpu)
        total = QWEN3_30B.layers * layer + self._small(QWEN3_30B) + [head_us, 0]
        return Rest(fixed_us=float(total[0]), token_us=float(total[1]))

    def derived_rest(self, gpu: str, shape: ModelShape) -> Rest:
        """Whatever was not measured: reading bfloat16 weights once, and small kernels."""
        weights_us = shape.rest_params * 2 / shape.ranks / self.bytes_per_us(gpu)
        fixed_us, token_us = self._small(shape).tolist()
        return Rest(fixed_us=weights_us + fixed_us, token_us=token_us)

    def _small(self, shape: ModelShape) -> tables.Floats:
        """Norms and rotary embedding of all layers, and sampling: hardly a matter of the GPU."""
        parts = {name: _per_token(*part) for name, part in tables.read_rtx_parts(self.folder).items()}
        layer = 2 * parts["layernorm"] + parts["qk_norm"] + parts["rotary_emb"]
        total: tables.Floats = shape.layers * layer + parts["embedding"] + parts["sampler"]
        return total

    def bytes_per_us(self, gpu: str) -> float:
        """What reading the experts of Qwen3-30B reaches on this GPU, or a like share of its bandwidth."""
        for source in SOURCES:
            if source.gpu == gpu and source.shape is QWEN3_30B:
                expert = QWEN3_30B.expert_params * QWEN3_30B.expert_bytes
                return float(expert / self.moe(source).coefficients[1])
        return self.bytes_per_us("H200") * PEAK_BYTES_PER_S[gpu] / PEAK_BYTES_PER_S["H200"]


def _attention_fit(batch: tables.Floats, context: tables.Floats, latency_us: tables.Floats) -> LinearFit:
    """a + b x batch + c x tokens of context, where decode batches are: up to 1 M tokens."""
    keep = (batch <= MOST_TOKENS) & (context >= 128) & (context <= 16384) & (batch * context <= 2**20)
    batch, context, latency_us = batch[keep], context[keep], latency_us[keep]
    x = np.stack([np.ones_like(batch), batch, batch * context], axis=1)
    return fit_linear(x, latency_us, batch)


def _attention(layers: int, fit: LinearFit) -> Attention:
    fixed, sequence, context = (layers * fit.coefficients).tolist()
    return Attention(fixed_us=fixed, sequence_us=sequence, context_us=context)


def _sum(parts: Iterable[tables.Floats]) -> tables.Floats:
    total: tables.Floats = np.sum(list(parts), axis=0)
    return total


def _per_token(tokens: tables.Floats, latency_us: tables.Floats) -> tables.Floats:
    """[2]: fixed and a token, in decode batches."""
    keep = tokens <= MOST_TOKENS
    x = np.stack([np.ones(keep.sum()), tokens[keep]], axis=1)
    return solve(x, latency_us[keep])


def fitted(part: str, source: str, fit: LinearFit) -> Fit:
    """The provenance of a part that was fitted."""
    return Fit(part=part, source=source, r2=fit.r2, cv_error=fit.cv_error, points=fit.points)
