"""Parts of documents that are made from measured numbers, so that none of these is typed.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, each a line of its own.
"""

import re
from pathlib import Path

from eldr.errors import ConfigError
from eldr.files import replacing


def replace_part(page: Path, name: str, text: str) -> None:
    """Put `text` in place of what stands between the marks of NAME. ConfigError where they are missing."""
    marks = re.compile(rf"(<!-- begin {name} -->\n).*(<!-- end {name} -->)", re.DOTALL)
    whole, found = marks.subn(lambda mark: f"{mark[1]}{text}\n{mark[2]}", page.read_text("utf-8"))
    if found != 1:
        raise ConfigError(
            f"{page} has {found} parts {name!r}; it needs one `<!-- begin {name} -->` and its end"
        )
    with replacing(page) as file:
        file.write(whole.encode())
