"""The payload between engine and router: lossless, bounded, and never anything but PayloadError."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.errors import PayloadError
from eldr.types import Counts
from eldr.wire import VERSION, decode_counts, encode_counts


def routed(rng: np.random.Generator, layers: int, experts: int, top_k: int, tokens: int) -> Counts:
    """Counts of `tokens` tokens that each pick top_k distinct experts a layer."""
    chosen = rng.random((tokens, layers, experts)).argsort(axis=-1)[..., :top_k]
    picked = np.zeros((tokens, layers, experts), np.uint32)
    np.put_along_axis(picked, chosen, 1, axis=-1)
    return picked.sum(axis=0, dtype=np.uint32)


@pytest.fixture
def payload() -> dict[str, Any]:
    return encode_counts(routed(np.random.default_rng(0), 3, 8, 2, 20), top_k=2, tokens=20)


@given(
    layers=st.integers(1, 5),
    experts=st.integers(1, 12),
    tokens=st.integers(0, 400),
    missing=st.integers(0, 5),
    data=st.data(),
)
def test_round_trip_through_json(
    layers: int, experts: int, tokens: int, missing: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    counts = routed(np.random.default_rng(tokens), layers, experts, top_k, tokens)
    sent = encode_counts(counts, top_k=top_k, tokens=tokens + missing, covered=tokens)
    got = decode_counts(json.loads(json.dumps(sent)))
    assert np.array_equal(got.counts, counts)
    assert got.counts.dtype == np.uint32
    assert (got.top_k, got.tokens, got.covered) == (top_k, tokens + missing, tokens)
    assert ("covered" in sent) == (missing > 0)


@pytest.mark.parametrize(("tokens", "dtype"), [(255, "uint8"), (256, "uint16"), (65_536, "uint32")])
def test_smallest_type_that_holds_the_counts(tokens: int, dtype: str) -> None:
    counts = np.full((2, 3), tokens, np.int64)
    sent = encode_counts(counts, top_k=3, tokens=tokens)
    assert sent["dtype"] == dtype
    assert np.array_equal(decode_counts(sent).counts, counts)


def test_layout_is_the_documented_one(payload: dict[str, Any]) -> None:
    assert list(payload) == ["v", "layers", "experts", "top_k", "tokens", "dtype", "enc", "counts"]
    assert payload["v"] == VERSION
    raw = np.frombuffer(zlib.decompress(base64.b64decode(payload["counts"])), np.uint8)
    assert np.array_equal(raw.reshape(3, 8), decode_counts(payload).counts)


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_wider_types_are_read_too(payload: dict[str, Any], dtype: str) -> None:
    counts = decode_counts(payload).counts
    text = base64.b64encode(zlib.compress(counts.astype(dtype).tobytes())).decode()
    wide = payload | {"dtype": np.dtype(dtype).name, "counts": text}
    assert np.array_equal(decode_counts(wide).counts, counts)


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 2),
        ("v", True),
        ("v", None),
        ("layers", 0),
        ("layers", "3"),
        ("layers", True),
        ("layers", 2.0),
        ("layers", 4),
        ("layers", 10**30),
        ("experts", -8),
        ("top_k", 9),
        ("top_k", None),
        ("tokens", -1),
        ("tokens", 1e3),
        ("covered", 21),
        ("covered", None),
        ("dtype", "int64"),
        ("dtype", ["uint8"]),
        ("enc", "raw"),
        ("enc", []),
        ("counts", None),
        ("counts", b"bytes"),
        ("counts", "not base64!"),
        ("counts", "héllo"),
        ("counts", ""),
        ("counts", packed(b"")),
        ("counts", packed(b"\0" * 23)),
        ("counts", packed(b"\0" * 25)),
        ("counts", packed(b"\xff" * 24)),
        ("counts", packed(b"\0" * 24)[:-8]),
        ("counts", "A" * 100_000),
    ],
)
def test_every_defect_names_its_field(payload: dict[str, Any], field: str, value: object) -> None:
    named = "counts" if (field, value) == ("layers", 4) else field
    with pytest.raises(PayloadError, match=f"'{named}'"):
        decode_counts(payload | {field: value})


@pytest.mark.parametrize("missing", ["v", "layers", "experts", "top_k", "tokens", "dtype", "enc", "counts"])
def test_a_missing_field_is_named(payload: dict[str, Any], missing: str) -> None:
    del payload[missing]
    with pytest.raises(PayloadError, match=f"'{missing}'"):
        decode_counts(payload)


def test_every_layer_must_sum_to_covered_times_top_k(payload: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match=r"sum of 40 in layer 0, expected 38 \(covered x top_k\)"):
        decode_counts(payload | {"covered": 19})
    counts = decode_counts(payload).counts.astype(np.uint8)
    counts[1, counts[1].argmax()] -= 1
    counts[2, counts[2].argmin()] += 1
    with pytest.raises(PayloadError, match="sum of 39 in layer 1, expected 40"):
        decode_counts(payload | {"counts": packed(counts.tobytes())})


def test_a_token_cannot_pick_an_expert_twice(payload: dict[str, Any]) -> None:
    counts = np.zeros((3, 8), np.uint8)
    counts[:, 0] = 40
    with pytest.raises(PayloadError, match="a count of 40, expected at most 20"):
        decode_counts(payload | {"counts": packed(counts.tobytes())})


def test_nothing_may_follow_the_array(payload: dict[str, Any]) -> None:
    longer = base64.b64encode(base64.b64decode(payload["counts"]) + b"more").decode()
    with pytest.raises(PayloadError, match="longer stream, expected exactly 24 bytes"):
        decode_counts(payload | {"counts": longer})


def test_a_zip_bomb_is_not_inflated(payload: dict[str, Any]) -> None:
    bomb = packed(b"\0" * 2_000_000)
    assert len(bomb) < 4_000
    with pytest.raises(PayloadError, match="at most 1048576 bytes"):
        decode_counts(payload | {"layers": 1_000, "experts": 2_000, "counts": bomb})
    with pytest.raises(PayloadError, match="exactly 4096 bytes"):
        decode_counts(payload | {"layers": 32, "experts": 128, "counts": bomb})
    with pytest.raises(PayloadError, match="at most 16 bytes"):
        decode_counts(payload, max_bytes=16)


@pytest.mark.parametrize(
    "counts",
    [np.array([[-1]]), np.array([[2**32]]), np.array([1, 2]), np.array([[0.5]]), np.zeros((0, 4), int)],
)
def test_what_cannot_be_encoded(counts: Any) -> None:
    with pytest.raises(PayloadError, match="'counts'"):
        encode_counts(counts, top_k=1, tokens=1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ["v", "layers", "experts", "top_k", "tokens", "covered", "dtype", "enc", "counts"]


@given(JSON)
def test_any_other_object_is_refused(value: object) -> None:
    with pytest.raises(PayloadError):
        decode_counts(value)


@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=4))
def test_a_mangled_payload_gives_valid_counts_or_payload_error(changes: dict[str, Any]) -> None:
    sent = encode_counts(routed(np.random.default_rng(0), 3, 8, 2, 20), top_k=2, tokens=20) | changes
    _decodes_or_refuses(sent)


@given(cut=st.integers(0, 40), data=st.binary(max_size=40))
def test_a_mangled_array_gives_valid_counts_or_payload_error(cut: int, data: bytes) -> None:
    sent = encode_counts(routed(np.random.default_rng(0), 3, 8, 2, 20), top_k=2, tokens=20)
    stream = base64.b64decode(sent["counts"])
    _decodes_or_refuses(sent | {"counts": base64.b64encode(stream[:cut] + data).decode()})
    _decodes_or_refuses(sent | {"counts": packed(data)})


def _decodes_or_refuses(sent: dict[str, Any]) -> None:
    try:
        got = decode_counts(sent)
    except PayloadError:
        return
    layers = got.counts.shape[0]
    assert int(got.counts.sum()) == got.covered * layers * got.top_k
