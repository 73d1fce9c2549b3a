"""What the cost of a decode step needs to know of a model and a GPU, from their public descriptions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A served MoE model.

    key: its name in the latency tables; dtype: of the experts there. expert_bytes: a weight of an expert.
    active_params: of a token, as the model's makers say. full_kv_bytes: KV that one token keeps in all layers
    with full attention; window_kv_bytes: in those with a sliding window of `window` tokens.
    head_width: attention heads x head size, for prefill.
    ranks: GPUs of a worker, which split experts by number and all else evenly.
    """

    key: str
    name: str
    dtype: str
    layers: int
    experts: int
    top_k: int
    hidden: int
    inter: int
    expert_bytes: float
    active_params: float
    head_width: int
    full_kv_bytes: int
    window_kv_bytes: int = 0
    window: int = 0
    ranks: int = 1

    @property
    def expert_params(self) -> int:
        """Weights of one expert of one layer."""
        return 3 * self.hidden * self.inter

    @property
    def rest_params(self) -> float:
        """Weights that every token reads beside its experts."""
        return self.active_params - self.layers * self.top_k * self.expert_params


QWEN3_30B = ModelShape(
    key="Qwen3-30B-A3B",
    name="Qwen3-30B-A3B",
    dtype="bfloat16",
    layers=48,
    experts=128,
    top_k=8,
    hidden=2048,
    inter=768,
    expert_bytes=2,
    active_params=3.3e9,
    head_width=32 * 128,
    full_kv_bytes=48 * 2 * 4 * 128 * 2,
)

GPT_OSS_120B = ModelShape(
    key="GPT-OSS-120B",
    name="GPT-OSS-120B",
    dtype="w4a16_mxfp4",
    layers=36,
    experts=128,
    top_k=4,
    hidden=2880,
    inter=2880,
    expert_bytes=4.25 / 8,
    active_params=5.1e9,
    head_width=64 * 64,
    full_kv_bytes=18 * 2 * 8 * 64 * 2,
    window_kv_bytes=18 * 2 * 8 * 64 * 2,
    window=128,
)

GEMMA4_26B = ModelShape(
    key="Gemma4-26B-A4B",
    name="Gemma-4-26B-A4B",
    dtype="bfloat16",
    layers=30,
    experts=128,
    top_k=8,
    hidden=2816,
    inter=704,
    expert_bytes=2,
    active_params=4e9,
    head_width=16 * 256,
    full_kv_bytes=5 * 2 * 2 * 512 * 2,
    window_kv_bytes=25 * 2 * 8 * 256 * 2,
    window=1024,
)

QWEN3_235B = ModelShape(
    key="Qwen3-235B-A22B",
    name="Qwen3-235B-A22B",
    dtype="bfloat16",
    layers=94,
    experts=128,
    top_k=8,
    hidden=4096,
    inter=1536,
    expert_bytes=2,
    active_params=22e9,
    head_width=64 * 128,
    full_kv_bytes=94 * 2 * 4 * 128 * 2,
    ranks=4,
)

COLLECTIVES_US = 40.0
"""Assumed, of a layer that is split over GPUs: two collectives."""

PEAK_BYTES_PER_S = {
    "H200": 4.8e12,
    "H100": 3.35e12,
    "A100": 2.04e12,
    "RTX PRO 6000": 1.6e12,
    "MI300X": 5.3e12,
}
"""Memory bandwidth by data sheet."""

LINK_BYTES_PER_S = 50e9
"""Assumed for KV transfers: a 400 Gbit/s network card a worker."""

TRANSFER_FIXED_US = 1000.0
"""Assumed: a handshake and a read across the network."""

PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "RTX PRO 6000": 503e12, "MI300X": 1307e12}
"""Dense bfloat16 by data sheet."""

PREFILL_USE_OF_PEAK = 0.4
"""Assumed: the share of these that a prefill step reaches beyond reading the weights once."""
