"""What a router begins with: the profile that it was given, and the one that it learned before."""

import logging
from pathlib import Path
from typing import NamedTuple

from eldr.errors import ConfigError, ProfileError
from eldr.profile.artifact import Profile

log = logging.getLogger(__name__)


class Profiles(NamedTuple):
    """What there is: learned is used if it is of the workers' model; else given, which must fit."""

    given: Profile | None = None
    learned: Profile | None = None


def learned_before(path: Path) -> Profile | None:
    """The profile that an earlier router saved, if there is one.

    A file that cannot be read is kept beside it as `.old`, and one is learned again. Raises ConfigError where
    that cannot be done.
    """
    try:
        if not path.is_file():
            return None
        learned = Profile.load(path)
    except ProfileError as error:
        kept = path.with_name(f"{path.name}.old")
        log.warning("what was learned before cannot be used, and is now %s: %s", kept, error)
        try:
            path.replace(kept)
        except OSError as problem:
            raise ConfigError(f"adapt.save: cannot rename {path}: {problem.strerror}") from None
        return None
    except OSError as error:
        raise ConfigError(f"adapt.save: cannot read {path}: {error.strerror}") from None
    log.info("beginning with what was learned before, %s", path)
    return learned
