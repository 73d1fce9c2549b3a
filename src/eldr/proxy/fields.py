"""Reading single fields of a JSON body whose values have not been parsed, as vLLM would read them.

vLLM reads bodies in pydantic's lax mode: "2" and 2.0 are integers, 1 and "true" are true. The router must
agree, or a request with "n": "2" would be handed off as if it were one sequence.
"""

from codecs import getincrementaldecoder

import msgspec
from msgspec import Raw

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding can raise: malformed text, bytes that are no text, nesting without end."""

_PLAIN_DIGITS = 18
"""Of an integer that any reader takes alike."""

_TEXT_PIECE_BYTES = 1024 * 1024
"""Of a body that is checked in one go, and is then, for a moment, up to four times as large."""

MOST_DECODED_BYTES = 1024 * 1024
"""Of a single value: as objects of Python it would take many times its text."""

_LITERALS = (b"true", b"false")

Body = dict[str, Raw]
"""A JSON object whose values have not been parsed."""


def given(body: Body, field: str) -> bool:
    """Whether the field is there and not null."""
    return field in body and bytes(body[field]) != b"null"


def decoded(raw: Raw) -> object:
    """The value; None for a huge one, and for one that cannot be parsed, which the engine will refuse."""
    if len(memoryview(raw)) > MOST_DECODED_BYTES:
        return None
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return None


def check_text(data: bytes) -> None:
    """Raise UnicodeDecodeError for what is not UTF-8."""
    decoder = getincrementaldecoder("utf-8")()
    for at in range(0, len(data), _TEXT_PIECE_BYTES):
        decoder.decode(data[at : at + _TEXT_PIECE_BYTES])
    decoder.decode(b"", final=True)


def text_field(body: Body, field: str) -> str | None:
    """A top-level string of the body, such as the model's name."""
    value = decoded(body[field]) if field in body else None
    return value if isinstance(value, str) else None


def integer(raw: Raw) -> int | None:
    """The value as an integer; None when it is none."""
    if (digits := bytes(raw)).isdigit() and len(digits) <= _PLAIN_DIGITS:
        return int(digits)
    value = decoded(raw)
    if isinstance(value, float) and not value.is_integer():
        return None
    try:
        return int(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def truth(body: Body, field: str) -> bool:
    """Whether the field is there and true."""
    if field not in body:
        return False
    if (literal := bytes(body[field])) in _LITERALS:
        return literal == b"true"
    value = decoded(body[field])
    if isinstance(value, bool):
        return value
    return str(value).strip().lower() in ("true", "1", "1.0", "on", "t", "yes", "y")
