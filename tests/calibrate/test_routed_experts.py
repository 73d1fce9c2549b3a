import base64

import numpy as np
import pytest

from eldr.calibrate.routed_experts import RoutedExperts, decode_array
from eldr.errors import CalibrationError

from .fake_engine import EXPERTS, choices, npy_base64


def answer(array: np.ndarray, prompt: int, output: int) -> dict[str, object]:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return {"choices": [{"routed_experts": npy_base64(array)}], "usage": usage}


def test_rows_must_match_the_usage() -> None:
    with pytest.raises(CalibrationError, match="9 rows for 6 prompt and 5 output tokens, 10 expected"):
        RoutedExperts(EXPERTS).parse(answer(choices("x", 9), 6, 5))


def test_an_expert_id_out_of_range_is_refused() -> None:
    with pytest.raises(CalibrationError, match="in a model of 4 experts"):
        RoutedExperts(4).parse(answer(choices("x", 10), 6, 5))
    padded = choices("x", 10).astype(np.int32)
    padded[3, 1, 0] = -1
    with pytest.raises(CalibrationError, match="expert id -1 in a model of 8 experts"):
        RoutedExperts(EXPERTS).parse(answer(padded, 6, 5))


def test_layers_with_experts_must_stay_the_same() -> None:
    source = RoutedExperts(EXPERTS)
    source.parse(answer(choices("x", 10), 6, 5))
    changed = choices("y", 10)
    changed[:, 1] = 0
    with pytest.raises(CalibrationError, match=r"changed from \(0, 1, 2\) to \(0, 2\)"):
        source.parse(answer(changed, 6, 5))


@pytest.mark.parametrize(
    "encoded",
    [
        "not base64!",
        base64.b64encode(b"no npy file").decode(),
        npy_base64(np.zeros((3, 2), np.uint8)),
        npy_base64(np.zeros((3, 2, 2), np.float32)),
        npy_base64(np.zeros((0, 2, 2), np.uint8)),
    ],
)
def test_anything_else_than_an_integer_array_is_refused(encoded: str) -> None:
    with pytest.raises(CalibrationError, match="routed_experts is"):
        decode_array(encoded)


@pytest.mark.parametrize("choices_", [None, [], [None], "text"])
def test_an_answer_of_another_endpoint_is_refused(choices_: object) -> None:
    with pytest.raises(CalibrationError, match="no choices"):
        RoutedExperts(EXPERTS).parse({"object": "list", "choices": choices_})


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": 6}, {"prompt_tokens": 6, "completion_tokens": "5"}]
)
def test_an_answer_that_counts_no_tokens_is_refused(usage: object) -> None:
    with pytest.raises(CalibrationError, match="no token usage"):
        RoutedExperts(EXPERTS).parse({**answer(choices("x", 10), 6, 5), "usage": usage})
