"""Observations -> a calibration set."""

from collections.abc import Sequence

import numpy as np

from eldr.calibrate.observation import Observation
from eldr.calibrate.prompts import Prompt
from eldr.profile.dataset import CalibrationSet


def assemble(observed: Sequence[tuple[Prompt, Observation]], model: str) -> CalibrationSet:
    """One row a (prompt, observation), in this order; at least one is needed."""
    prompts, seen = zip(*observed, strict=True)
    return CalibrationSet(
        prefill_counts=np.stack([one.prefill for one in seen]),
        decode_counts=np.stack([one.decode for one in seen]),
        label=np.array([prompt.label for prompt in prompts], dtype=np.str_),
        prompt_tokens=np.array([one.prompt_tokens for one in seen], dtype=np.int32),
        output_tokens=np.array([one.output_tokens for one in seen], dtype=np.int32),
        prompt_id=np.array([prompt.origin for prompt in prompts], dtype=np.str_),
        model=model,
        top_k=seen[0].top_k,
    )
