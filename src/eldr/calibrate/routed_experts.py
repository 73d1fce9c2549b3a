"""Calibration on a stock vLLM: its `routed_experts` array, from an engine with
--enable-return-routed-experts.

The array is int [P + G - 1, layers, top_k] (P prompt tokens, then G output tokens without the last, which no
forward pass has seen); `layers` counts layers without experts too, and those rows are all zero.
"""

import base64
import binascii
import io

import numpy as np
import numpy.typing as npt

from eldr.calibrate.observation import Observation, token_usage
from eldr.counting import count_experts
from eldr.errors import CalibrationError

Ids = npt.NDArray[np.integer]


class RoutedExperts:
    """The `Source` for stock vLLM.

    num_experts: E of the model; the array does not say it.
    moe_layers: which layers of the array have experts. Learned from the first answer, then required of every
    other.
    """

    name = "routed_experts"

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts
        self.moe_layers: tuple[int, ...] | None = None

    def body(self, body: dict[str, object]) -> dict[str, object]:
        return body

    def parse(self, answer: dict[str, object]) -> Observation:
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise CalibrationError("the answer has no choices; is this a completions endpoint?")
        encoded = choices[0].get("routed_experts")
        if not isinstance(encoded, str):
            raise CalibrationError(
                "the answer carries no routed_experts; start vLLM with --enable-return-routed-experts, "
                "or load ELDR's connector"
            )
        ids = self._moe_rows(decode_array(encoded))
        prompt, output = token_usage(answer)
        if len(ids) != prompt + output - 1:
            raise CalibrationError(
                f"routed_experts has {len(ids)} rows for {prompt} prompt and {output} output tokens, "
                f"{prompt + output - 1} expected; was the request cut or its prompt skipped?"
            )
        prefill, decode = (count_experts(part, self.num_experts) for part in (ids[:prompt], ids[prompt:]))
        return Observation(prefill, decode, ids.shape[2], prompt, output)

    def _moe_rows(self, ids: Ids) -> Ids:
        moe_layers = tuple(int(layer) for layer in np.flatnonzero(ids.any(axis=(0, 2))))
        if not moe_layers:
            raise CalibrationError(
                "routed_experts is all zero: this engine's fused kernel does not report expert choices; "
                "try another MoE backend, or load ELDR's connector"
            )
        if self.moe_layers is None:
            self.moe_layers = moe_layers
        if moe_layers != self.moe_layers:
            raise CalibrationError(f"layers with experts changed from {self.moe_layers} to {moe_layers}")
        outside = ids[(ids < 0) | (ids >= self.num_experts)]
        if outside.size:
            raise CalibrationError(f"expert id {outside[0]} in a model of {self.num_experts} experts")
        return ids[:, list(moe_layers), :]


def decode_array(encoded: str) -> Ids:
    """The int array [tokens, layers, top_k] in base64 of a .npy file; CalibrationError if it is anything
    else.
    """
    try:
        raw = base64.b64decode(encoded, validate=True)
        array: Ids = np.load(io.BytesIO(raw), allow_pickle=False)
    except (binascii.Error, ValueError, EOFError, OSError) as error:
        raise CalibrationError(f"routed_experts is not base64 of a .npy array: {error}") from error
    if array.ndim != 3 or not np.issubdtype(array.dtype, np.integer) or 0 in array.shape:
        raise CalibrationError(
            f"routed_experts is {array.dtype} {array.shape}, not integers [tokens, layers, top_k]"
        )
    return array
