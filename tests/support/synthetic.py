"""Requests of a made-up MoE whose domains prefer different experts, for tests that need no model."""

import numpy as np
import numpy.typing as npt

from eldr.profile.dataset import CalibrationSet


def calibration_set(
    *,
    requests: int = 60,
    layers: int = 3,
    experts: int = 16,
    top_k: int = 2,
    domains: int = 3,
    sharpness: float = 2.0,
    seed: int = 0,
) -> CalibrationSet:
    """Each domain prefers experts of its own; requests take the domains in turn."""
    rng = np.random.default_rng(seed)
    preference = rng.normal(scale=sharpness, size=(domains, layers, experts))
    domain = np.arange(requests) % domains
    prompt = rng.integers(20, 60, requests).astype(np.int32)
    output = rng.integers(10, 30, requests).astype(np.int32)
    request = preference[domain] + rng.normal(scale=0.3, size=(requests, layers, experts))
    return CalibrationSet(
        prefill_counts=_draw(request, prompt, top_k, rng),
        decode_counts=_draw(request, output, top_k, rng),
        label=np.array([f"domain{d}" for d in domain]),
        prompt_tokens=prompt,
        output_tokens=output,
        model="synthetic",
        top_k=top_k,
    )


def _draw(
    logits: npt.NDArray[np.float64], tokens: npt.NDArray[np.int32], top_k: int, rng: np.random.Generator
) -> npt.NDArray[np.uint32]:
    """Choose top_k distinct experts for each token and layer (Gumbel top-k) and count them."""
    counts = np.zeros(logits.shape, np.uint32)
    for row, n in enumerate(tokens):
        noisy = logits[row] + rng.gumbel(size=(n, *logits.shape[1:]))
        chosen = np.argpartition(-noisy, top_k - 1, axis=-1)[..., :top_k]
        picked = np.zeros(noisy.shape, np.uint32)
        np.put_along_axis(picked, chosen, 1, axis=-1)
        counts[row] = picked.sum(axis=0)
    return counts
