"""The versioned payload in which an engine tells the router which experts a prompt used.

    {"v": 1, "layers": L, "experts": E, "top_k": k, "tokens": n,
     "dtype": "uint16", "enc": "zlib+b64", "counts": "..."}

It travels in `kv_transfer_params["eldr"]`. `counts` is base64 of zlib of the little-endian, row-major [L, E]
array. "covered" is present only when fewer than `tokens` prompt tokens were counted.
"""

import binascii
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from eldr.errors import PayloadError
from eldr.types import ExpertCounts

VERSION = 1
ENCODING = "zlib+b64"
MAX_BYTES = 1 << 20
"""Default limit on the decompressed array; 48 layers of 128 experts take 24 KiB as uint32."""

STORED = 0
"""zlib's level. Counts hardly shrink (to 60 %), and inflating them is the larger part of a decision's time;
stored, they still carry zlib's checksum. Decoders take any level."""

MAX_TOKENS = 2**31 - 1
_DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
_REMEDY = "engine plug-in and router must run the same eldr version"


def encode_counts(
    counts: npt.NDArray[Any], *, top_k: int, tokens: int, covered: int | None = None
) -> dict[str, Any]:
    """Return the payload for the integer counts [L, E], in the smallest type that holds them.

    tokens: prompt tokens of the request; covered: those of them that `counts` holds (None: all).
    Raises PayloadError when `counts` is not a matrix of integers from 0 to 2^32 - 1.
    """
    if counts.ndim != 2 or counts.size == 0 or counts.dtype.kind not in "iu" or counts.min() < 0:
        _fail("counts", f"{counts.dtype} {counts.shape}", "a matrix of integers >= 0")
    name = _smallest_dtype(int(counts.max()))
    data = np.ascontiguousarray(counts, dtype=_DTYPES[name])
    payload: dict[str, Any] = {
        "v": VERSION,
        "layers": counts.shape[0],
        "experts": counts.shape[1],
        "top_k": top_k,
        "tokens": tokens,
        "dtype": name,
        "enc": ENCODING,
        "counts": binascii.b2a_base64(zlib.compress(data.tobytes(), STORED), newline=False).decode("ascii"),
    }
    if covered is not None and covered != tokens:
        payload["covered"] = covered
    return payload


def decode_counts(payload: object, *, max_bytes: int = MAX_BYTES) -> ExpertCounts:
    """Check a payload and return its counts; `counts` is a writable uint32 [L, E] of its own.

    max_bytes: limit on the decompressed array. Raises PayloadError, naming the field, for every defect.
    """
    if not isinstance(payload, Mapping):
        _fail("eldr", payload, "an object")
    if type(version := payload.get("v")) is not int or version != VERSION:
        _fail("v", version, f"version {VERSION}")
    layers = _integer(payload, "layers", 1, max_bytes)
    experts = _integer(payload, "experts", 1, max_bytes)
    top_k = _integer(payload, "top_k", 1, experts)
    tokens = _integer(payload, "tokens", 0, MAX_TOKENS)
    covered = _integer(payload, "covered", 0, tokens) if "covered" in payload else tokens
    dtype = _dtype(payload)
    size = layers * experts * dtype.itemsize
    if size > max_bytes:
        _fail("layers", f"{layers} x {experts} {dtype}, {size} bytes", f"at most {max_bytes} bytes")
    counts = np.frombuffer(_inflate(payload, size), dtype).reshape(layers, experts).astype(np.uint32)
    _check_sums(counts, top_k, covered)
    return ExpertCounts(counts=counts, top_k=top_k, tokens=tokens, covered=covered)


def _smallest_dtype(largest: int) -> str:
    for name, dtype in _DTYPES.items():
        if largest <= np.iinfo(dtype).max:
            return name
    _fail("counts", largest, "counts below 2^32")


def _integer(payload: Mapping[Any, Any], field: str, low: int, high: int) -> int:
    value = payload.get(field)
    if type(value) is not int or not low <= value <= high:
        _fail(field, value, f"an integer from {low} to {high}")
    return value


def _dtype(payload: Mapping[Any, Any]) -> np.dtype[Any]:
    name = payload.get("dtype")
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        _fail("dtype", name, "one of " + ", ".join(_DTYPES))
    return dtype


def _inflate(payload: Mapping[Any, Any], size: int) -> bytes:
    """Decode and decompress exactly `size` bytes, and never hold more, whatever was sent."""
    if payload.get("enc") != ENCODING:
        _fail("enc", payload.get("enc"), repr(ENCODING))
    text = payload.get("counts")
    if not isinstance(text, str) or len(text) > 2 * size + 256:  # zlib and base64 add less than that
        _fail("counts", text, f"base64 text of {size} compressed bytes")
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(msgspec.convert(text, bytes), size + 1)  # a quarter of binascii's time
    except (ValueError, msgspec.ValidationError, zlib.error) as error:
        raise PayloadError(f"expert counts: field 'counts' is not {ENCODING}: {error}; {_REMEDY}") from error
    if len(data) != size or not inflater.eof or inflater.unused_data:
        _fail("counts", f"{len(data)} bytes or an unfinished or longer stream", f"exactly {size} bytes")
    return data


def _check_sums(counts: npt.NDArray[np.uint32], top_k: int, covered: int) -> None:
    """A token picks an expert at most once a layer, and picks top_k of them in each."""
    if (largest := int(counts.max())) > covered:
        _fail("counts", f"a count of {largest}", f"at most {covered}, the tokens covered")
    sums = counts.sum(axis=1, dtype=np.uint64)
    wrong = sums != covered * top_k
    if wrong.any():
        layer = int(wrong.argmax())
        _fail("counts", f"a sum of {sums[layer]} in layer {layer}", f"{covered * top_k} (covered x top_k)")


def _fail(field: str, value: object, expected: str) -> NoReturn:
    shown = value if isinstance(value, str) else repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise PayloadError(f"expert counts: field {field!r} is {shown}, expected {expected}; {_REMEDY}")
