"""How programs of this package end: an expected error is one line on stderr and exit status 1."""

import sys
from pathlib import Path

import click

from eldr.errors import EldrError

EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
"""The type of options that name a folder which must exist."""


def run(command: click.Command) -> None:
    """Run a command as a program."""
    try:
        command()
    except EldrError as error:
        print(f"eldr: {error}", file=sys.stderr)
        sys.exit(1)
