import base64

import numpy as np
import pytest

from eldr.calibrate.routed_experts import RoutedExperts, count_experts, decode_array
from eldr.errors import CalibrationError

from .fake_engine import EXPERTS, choices, npy_base64, oracle_counts


def answer(array: np.ndarray, prompt: int, output: int) -> dict[str, object]:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return {"choices": [{"routed_experts": npy_base64(array)}], "usage": usage}


def test_counts_equal_a_loop() -> None:
    ids = choices("some text", 37)
    np.testing.assert_array_equal(count_experts(ids, EXPERTS), oracle_counts(ids))


def test_rows_must_match_the_usage() -> None:
    with pytest.raises(CalibrationError, match="9 rows for 6 prompt and 5 output tokens, 10 expected"):
        RoutedExperts(EXPERTS).parse(answer(choices("x", 9), 6, 5))


def test_an_expert_id_out_of_range_is_refused() -> None:
    with pytest.raises(CalibrationError, match="in a model of 4 experts"):
        RoutedExperts(4).parse(answer(choices("x", 10), 6, 5))


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


def test_an_answer_of_another_endpoint_is_refused() -> None:
    with pytest.raises(CalibrationError, match="no usage or no choices"):
        RoutedExperts(EXPERTS).parse({"object": "list"})
