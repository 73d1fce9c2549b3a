"""Reading .npz files that this process did not write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.errors import CalibrationError


def read_arrays(path: Path, names: Sequence[str], remedy: str) -> dict[str, npt.NDArray[Any]]:
    """The named arrays. CalibrationError, which ends in `remedy`, where they cannot be had."""
    if not path.is_file():
        raise CalibrationError(f"no {path}; {remedy}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except KeyError as error:
        raise CalibrationError(f"{path} has no array {error}; {remedy}") from None
    except Exception as error:  # numpy, zipfile and zlib raise nearly anything on damaged bytes
        raise CalibrationError(f"{path} is damaged ({error}); {remedy}") from error
