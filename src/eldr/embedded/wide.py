"""The memory-bound variant of the embedded model, made from the shipped weights.

The shipped model fits into a CPU's cache, so there active experts cost nothing. Here every expert's
intermediate size is padded with zeros (rows of gate and up, columns of down): the same function, but each
active expert must be read from memory, as on a GPU.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from eldr.errors import ConfigError

Bits = NDArray[np.uint16]  # bfloat16, which numpy lacks; zero is zero in both

_WEIGHTS = "model.safetensors"
_BIN = "<u2"


def wide_model(
    intermediate_size: int = 2048, cache_dir: Path | None = None, source: Path | None = None
) -> Path:
    """The folder of the model with experts padded to `intermediate_size`; made once, then cached.

    Its logits are those of `source` (default: the shipped model). `cache_dir` is `$XDG_CACHE_HOME/eldr` by
    default. At 2,048 it takes 404 MB. Raises ConfigError where `intermediate_size` is smaller than the
    model's own.
    """
    from eldr.embedded import model_path

    source = source or model_path()
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if intermediate_size < config["moe_intermediate_size"]:
        raise ConfigError(
            f"intermediate size {intermediate_size} is below the model's {config['moe_intermediate_size']}; "
            "experts can only be padded"
        )
    digest = hashlib.sha256((source / _WEIGHTS).read_bytes()).hexdigest()[:12]
    target = (cache_dir or _default_cache()) / f"embedded-{digest}-{intermediate_size}"
    if not target.exists():
        _publish(target, lambda folder: _fill(source, folder, config, intermediate_size))
    return target


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eldr"


def _publish(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `target` and rename it, so that no one ever sees half of it."""
    beside: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        fill(beside)
        beside.chmod(0o755)
        beside.rename(target)
    except OSError as error:
        if not target.exists():  # else another process was faster, with the same result
            raise ConfigError(f"cannot write {target} ({error.strerror}); set XDG_CACHE_HOME") from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _fill(source: Path, folder: Path, config: dict[str, Any], width: int) -> None:
    for path in source.glob("*.json"):
        shutil.copy(path, folder)
    wide_config = config | {"moe_intermediate_size": width, "intermediate_size": width}
    (folder / "config.json").write_text(json.dumps(wide_config, indent=2) + "\n", encoding="utf-8")
    tensors = read_bits(source / _WEIGHTS)
    shapes = {name: padded_shape(name, bits.shape, width) for name, bits in tensors.items()}
    with open(folder / _WEIGHTS, "wb") as file:
        _write_bits(file, shapes, (pad(tensors[name], shape) for name, shape in shapes.items()))
        file.flush()
        os.fsync(file.fileno())


def padded_shape(name: str, shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """An expert matrix's shape with its intermediate side grown to `width`; other tensors keep theirs."""
    if ".experts." not in name:
        return shape
    return (shape[0], width) if ".down_proj." in name else (width, shape[1])


def pad(bits: Bits, shape: tuple[int, ...]) -> Bits:
    """`bits` in the corner of zeros of `shape`."""
    out = np.zeros(shape, dtype=bits.dtype)
    out[tuple(slice(size) for size in bits.shape)] = bits
    return out


def read_bits(path: Path) -> dict[str, Bits]:
    """All tensors of a bfloat16 safetensors file, as bits (safetensors' numpy interface refuses bfloat16)."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    body = memoryview(raw)[8 + size :]
    tensors = {}
    for name, info in header.items():
        if info["dtype"] != "BF16":
            raise ConfigError(
                f"{path}: tensor {name} is {info['dtype']}; only bfloat16 weights can be widened"
            )
        begin, end = info["data_offsets"]
        tensors[name] = np.frombuffer(body[begin:end], dtype=_BIN).reshape(info["shape"])
    return tensors


def _write_bits(file: BinaryIO, shapes: dict[str, tuple[int, ...]], tensors: Iterable[Bits]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for bits in tensors:
        file.write(bits.astype(_BIN, copy=False).tobytes())
