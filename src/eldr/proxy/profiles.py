"""What a router begins with: the profile that it was given, and the one that it learned before."""

import logging
from pathlib import Path
from typing import NamedTuple

from eldr.errors import ConfigError, ProfileError
from eldr.profile.artifact import Profile

log = logging.getLogger(__name__)


class Profiles(NamedTuple):
    """One of them or none. given: must fit, or the router does not start. learned: is used if it fits."""

    given: Profile | None = None
    learned: Profile | None = None

    @property
    def first(self) -> Profile | None:
        """The one to begin with."""
        return self.learned or self.given


def learned_before(path: Path) -> Profile | None:
    """The profile that an earlier router saved, if there is one.

    A file that cannot be read is kept beside it as `.old`, and one is learned again. Raises ConfigError where
    that cannot be done.
    """
    if not path.is_file():
        return None
    try:
        learned = Profile.load(path)
    except ProfileError as error:
        kept = path.with_name(f"{path.name}.old")
        log.warning("what was learned before cannot be used, and is now %s: %s", kept, error)
        try:
            path.replace(kept)
        except OSError as problem:
            raise ConfigError(f"adapt.save: cannot rename {path}: {problem.strerror}") from None
        return None
    log.info("beginning with what was learned before, %s", path)
    return learned
