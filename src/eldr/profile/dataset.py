"""The calibration set: what some labelled requests did to the experts, in prefill and in decode."""

import json
import zipfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

import numpy as np
import numpy.typing as npt

from eldr import __version__
from eldr.errors import CalibrationError
from eldr.files import replacing

_ZIP = b"PK\x03\x04"  # an .npz is a zip archive
_REMEDY = "record it again with `eldr calibrate`"
_REQUIRED = ("prefill_counts", "decode_counts", "label", "prompt_tokens", "output_tokens", "meta")


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSet:
    """N requests of one model, row by row.

    prefill_counts, decode_counts: uint32 [N, L, E]; each layer of a row sums to tokens counted x top_k, where
    no more tokens are counted than the request has.
    label: str [N], the domain or "" where unknown. prompt_id: str [N], which prompt of the input it was.
    prompt_tokens, output_tokens: int32 [N].
    model: name of the model; top_k: experts that a token activates a layer; eldr_version: of the writer.
    """

    prefill_counts: npt.NDArray[np.uint32]
    decode_counts: npt.NDArray[np.uint32]
    label: npt.NDArray[np.str_]
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    model: str
    top_k: int
    prompt_id: npt.NDArray[np.str_] | None = None
    eldr_version: str = __version__

    def __post_init__(self) -> None:
        """Raise CalibrationError, naming the field, for anything that is not as described above."""
        _check_types(self)
        _check_counts("prefill_counts", self.prefill_counts, self.prompt_tokens, self.top_k)
        _check_counts("decode_counts", self.decode_counts, self.output_tokens, self.top_k)

    def __len__(self) -> int:
        return len(self.prefill_counts)

    @property
    def layers(self) -> int:
        return int(self.prefill_counts.shape[1])

    @property
    def experts(self) -> int:
        return int(self.prefill_counts.shape[2])

    def rows(self, index: npt.NDArray[Any] | slice) -> Self:
        """Return the requests that a numpy index or mask selects, in its order."""
        return replace(self, **{name: array[index] for name, array in self._arrays().items()})

    def _arrays(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def save(self, path: Path) -> None:
        """Write the set as one compressed .npz file, atomically."""
        meta = {"model": self.model, "top_k": self.top_k, "eldr_version": self.eldr_version}
        with replacing(path) as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **self._arrays())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a set; raises CalibrationError when the file is absent, damaged or not a calibration set."""
        arrays = _read_arrays(path)
        missing = [name for name in _REQUIRED if name not in arrays]
        if missing:
            _fail(missing[0], f"missing in {path}")
        try:
            meta = json.loads(str(arrays.pop("meta")))
            return cls(
                model=meta["model"], top_k=meta["top_k"], eldr_version=str(meta["eldr_version"]), **arrays
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _fail("meta", f"not readable in {path} ({error})")
        except CalibrationError as error:
            raise CalibrationError(f"{path}: {error}") from None


def is_calibration(path: Path) -> bool:
    """Whether a file begins as a calibration set does. OSError where it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as file:
            return _unpack(file, path)
    except FileNotFoundError:
        raise CalibrationError(f"no calibration set at {path}; {_REMEDY}") from None
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from error


def _unpack(file: BinaryIO, path: Path) -> dict[str, npt.NDArray[Any]]:
    known = {field.name for field in fields(CalibrationSet)} | {"meta"}
    if not zipfile.is_zipfile(file):
        raise CalibrationError(f"{path} is not a calibration set, or is cut off; {_REMEDY}")
    file.seek(0)
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files if name in known}
    except Exception as error:  # numpy, zipfile and zlib raise nearly anything on damaged bytes
        raise CalibrationError(f"{path} is damaged ({error}); {_REMEDY}") from error
    return {name: _array(name, value) for name, value in found.items()}


def _array(name: str, value: object) -> npt.NDArray[Any]:
    """What numpy read; it gives the raw bytes of a member that is no array."""
    if not isinstance(value, np.ndarray):
        _fail(name, "not an array")
    return value


def _check_types(calibration: CalibrationSet) -> None:
    shape = calibration.prefill_counts.shape
    if len(shape) != 3 or 0 in shape:
        _fail("prefill_counts", f"of shape {shape}, expected requests x layers x experts, at least one each")
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "prefill_counts": ("uint32", shape),
        "decode_counts": ("uint32", shape),
        "label": ("str", shape[:1]),
        "prompt_id": ("str", shape[:1]),
        "prompt_tokens": ("int32", shape[:1]),
        "output_tokens": ("int32", shape[:1]),
    }
    for name, (dtype, wanted) in expected.items():
        array = getattr(calibration, name)
        if array is None:
            continue
        found = "str" if array.dtype.kind == "U" else array.dtype.name
        if (found, array.shape) != (dtype, wanted):
            _fail(name, f"{found} {list(array.shape)}, expected {dtype} {list(wanted)}")
    if type(calibration.top_k) is not int or not 1 <= calibration.top_k <= shape[2]:
        _fail(
            "top_k", f"{calibration.top_k!r}, expected an integer from 1 to {shape[2]}, the number of experts"
        )
    if not isinstance(calibration.model, str) or not calibration.model:
        _fail("model", f"{calibration.model!r}, expected the model's name")


def _check_counts(
    name: str, counts: npt.NDArray[np.uint32], tokens: npt.NDArray[np.int32], top_k: int
) -> None:
    choices = counts.sum(axis=2, dtype=np.int64)
    bad = (
        (choices != choices[:, :1])
        | (choices % top_k != 0)
        | (choices > top_k * tokens[:, None].astype(np.int64))
    )
    if bad.any():
        row, layer = np.argwhere(bad)[0]
        found = f"{choices[row, layer]} choices in layer {layer}, {choices[row, 0]} in layer 0"
        _fail(name, f"wrong in row {row}: {found}, for {tokens[row]} tokens of {top_k} each")


def _fail(field: str, problem: str) -> NoReturn:
    raise CalibrationError(f"calibration set: field {field!r} is {problem}; {_REMEDY}")
