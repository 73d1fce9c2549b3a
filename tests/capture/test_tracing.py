from __future__ import annotations

import numpy as np
import pytest

from eldr.capture.tracing import DecodeTrace, decode_ids, encode_ids
from eldr.errors import PayloadError

RNG = np.random.default_rng(0)


def ids(tokens: int, experts: int = 8) -> np.ndarray:
    return RNG.integers(0, experts, (tokens, 3, 2), dtype=np.int16)


def test_the_last_output_token_is_not_fed_back() -> None:
    trace, rows = DecodeTrace(prompt_tokens=10), ids(4)
    for index, row in enumerate(rows):
        trace.add(10 + index, row[None])
    np.testing.assert_array_equal(trace.ids(output_tokens=5), rows)
    np.testing.assert_array_equal(trace.ids(output_tokens=3), rows[:2])


def test_a_position_computed_again_keeps_its_last_ids() -> None:
    trace, old, new = DecodeTrace(10), ids(3), ids(3)
    trace.add(10, old)
    trace.add(11, new[1:])
    np.testing.assert_array_equal(trace.ids(4), np.stack([old[0], new[1], new[2]]))


def test_a_hole_or_an_unseen_choice_is_no_trace() -> None:
    trace = DecodeTrace(10)
    trace.add(11, ids(1))
    assert trace.ids(3) is None
    trace.add(10, np.full((1, 3, 2), -1))
    assert trace.ids(3) is None
    assert trace.ids(1) is None


@pytest.mark.parametrize(("experts", "dtype"), [(256, "uint8"), (300, "uint16")])
def test_ids_survive_the_wire(experts: int, dtype: str) -> None:
    rows = ids(20, experts)
    rows[0, 0, 0] = experts - 1
    payload = encode_ids(rows)
    assert payload["dtype"] == dtype
    np.testing.assert_array_equal(decode_ids(payload), rows)


@pytest.mark.parametrize(
    "damage",
    [
        {"v": 2},
        {"enc": "raw"},
        {"dtype": "float64"},
        {"shape": [1, 3]},
        {"shape": [-1, 3, 2]},
        {"shape": [9, 9, 9]},
        {"shape": [1, 3, 2]},
        {"ids": "!"},
        {"ids": "AAAA"},
        {"ids": None},
    ],
)
def test_damaged_ids_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises(PayloadError):
        decode_ids({**encode_ids(ids(5)), **damage})


def test_no_ids_at_all_are_refused() -> None:
    with pytest.raises(PayloadError):
        decode_ids(None)
