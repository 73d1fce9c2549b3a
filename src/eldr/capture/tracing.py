"""A request's decode-time expert choices, gathered step by step in the scheduler's process (numpy only)."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eldr.errors import PayloadError

_ID_DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "uint16": np.dtype("<u2")}


class DecodeTrace:
    """Expert ids of the output tokens that were fed back into the model.

    The token at position `prompt_tokens + i` is output token i. Of T output tokens T - 1 are fed back: the
    last one is returned and never computed. A position that is computed twice (preemption, a rejected
    draft) keeps its last ids.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._rows: dict[int, NDArray[np.integer]] = {}

    def add(self, first_position: int, ids: NDArray[np.integer]) -> None:
        """Stores ids [n, L, k] of the tokens from `first_position` on."""
        for offset, row in enumerate(ids):
            self._rows[first_position - self._prompt_tokens + offset] = row

    def ids(self, output_tokens: int) -> NDArray[np.integer] | None:
        """Integer [output_tokens - 1, L, k]; None if there is no such token or one of them was not seen."""
        rows = [self._rows.get(index) for index in range(output_tokens - 1)]
        known = [row for row in rows if row is not None and (row >= 0).all()]
        return np.stack(known) if known and len(known) == len(rows) else None


def encode_ids(ids: NDArray[np.integer]) -> dict[str, object]:
    """The payload `kv_transfer_params["eldr_decode_ids"]` for ids [n, L, k]: zlib and base64 of uint8 or
    uint16.
    """
    name = "uint8" if int(ids.max(initial=0)) < 256 else "uint16"
    packed = zlib.compress(np.ascontiguousarray(ids, dtype=_ID_DTYPES[name]).tobytes(), 1)
    return {
        "v": 1,
        "shape": list(ids.shape),
        "dtype": name,
        "enc": "zlib+b64",
        "ids": base64.b64encode(packed).decode("ascii"),
    }


def decode_ids(payload: Any) -> NDArray[np.uint16]:
    """uint16 [n, L, k] from `encode_ids`' payload.

    Raises:
        PayloadError: the payload is malformed.
    """
    try:
        shape = [int(size) for size in payload["shape"]]
        dtype = _ID_DTYPES[payload["dtype"]]
        if payload["v"] != 1 or payload["enc"] != "zlib+b64" or len(shape) != 3 or min(shape) < 0:
            raise ValueError(f"version {payload['v']}, encoding {payload['enc']!r}, shape {shape}")
        size = math.prod(shape) * dtype.itemsize
        data = zlib.decompressobj().decompress(base64.b64decode(payload["ids"], validate=True), size + 1)
        ids: NDArray[np.uint16] = np.frombuffer(data, dtype).reshape(shape).astype(np.uint16)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise PayloadError(f"expert ids of a decode trace are malformed: {error!r}") from error
    return ids
