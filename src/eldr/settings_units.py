"""Units and forms that settings share, with the words in which an error tells what it expected."""

from typing import Annotated

from msgspec import Meta

LONGEST_S = 86_400.0
"""A day. No time that the router keeps is longer, so more is a slip of the unit, or a way to say never."""

Seconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""Seconds, or 0 for none at all."""

Port = Annotated[int, Meta(ge=0, le=65535)]

FORMS = {
    r"^[A-Za-z0-9._-]{1,64}\Z": "1 to 64 letters, digits, dots, dashes or underscores",
    r"^https?://[A-Za-z0-9._-]+:\d{1,5}\Z": "http://NAME:PORT or https://NAME:PORT",
    r"^https?://[^/?#\s]": "a URL like http://HOST:4318/v1/traces",
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z": "the name of a header",
}
"""Patterns of texts in settings, each with what an operator is told that it means."""

NAME, NAME_URL, URL, HEADER = (Meta(pattern=pattern) for pattern in FORMS)
