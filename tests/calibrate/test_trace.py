import numpy as np
import pytest

from eldr.calibrate.trace import Trace
from eldr.errors import CalibrationError
from eldr.wire import encode_counts

from .fake_engine import TOP_K, choices, oracle_counts

IDS = choices("x", 9)
PREFILL = encode_counts(oracle_counts(IDS[:6]), top_k=TOP_K, tokens=6)
DECODE = encode_counts(oracle_counts(IDS[6:]), top_k=TOP_K, tokens=3)
USAGE = {"prompt_tokens": 6, "completion_tokens": 4}


def answer(**params: object) -> dict[str, object]:
    return {"choices": [{"text": ""}], "usage": USAGE, "kv_transfer_params": params}


def test_both_counts_are_read() -> None:
    seen = Trace().parse(answer(eldr=PREFILL, eldr_decode=DECODE))
    np.testing.assert_array_equal(seen.prefill, oracle_counts(IDS[:6]))
    np.testing.assert_array_equal(seen.decode, oracle_counts(IDS[6:]))
    assert (seen.top_k, seen.prompt_tokens, seen.output_tokens) == (TOP_K, 6, 4)


def test_the_request_asks_for_a_trace() -> None:
    assert Trace().body({"prompt": "x"}) == {"prompt": "x", "kv_transfer_params": {"eldr": {"trace": True}}}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "mixture-of-experts model"),
        ({"eldr": PREFILL}, "ended before its second token"),
        ({"eldr": {**PREFILL, "v": 9}, "eldr_decode": DECODE}, "version 1"),
        (
            {
                "eldr": encode_counts(oracle_counts(IDS[:6]), top_k=TOP_K, tokens=8, covered=6),
                "eldr_decode": DECODE,
            },
            "6 of 8 prompt tokens only",
        ),
    ],
)
def test_what_cannot_be_trusted_is_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        Trace().parse(answer(**params))


def test_an_engine_without_a_connector_is_named() -> None:
    with pytest.raises(CalibrationError, match="EldrConnector"):
        Trace().parse({"choices": [{"text": ""}], "usage": USAGE, "kv_transfer_params": None})


def test_an_answer_that_counts_no_tokens_is_refused() -> None:
    with pytest.raises(CalibrationError, match="no token usage"):
        Trace().parse({**answer(eldr=PREFILL, eldr_decode=DECODE), "usage": None})
