"""The embedded model's expert choices on public prompts, recorded through real vLLM (evidence: engine).

`python -m eldr.bench.record_traces` writes the file, docs/data/embedded_traces.npz, which docs/traces.md
describes. It holds expert ids, labels and lengths, and no text.
"""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eldr.errors import CalibrationError
from eldr.files import replacing
from eldr.traces.archive import read_arrays
from eldr.traces.base import DecodeIds, ExpertTraces

TASKS = ("code", "math", "medical", "law")
"""Labels of the workload `tasks`; every other label is a language."""

RECORDED = Path(__file__).parents[3] / "docs" / "data" / "embedded_traces.npz"
"""Evidence belongs to the repository, not to the installed package: a checkout has it."""

GATES = RECORDED.with_name("embedded_gates.npz")

Workload = Literal["tasks", "languages", "all"]

_ARRAYS = ("ids", "tokens", "label", "benchmark", "prompt_tokens", "prefill", "meta")


def embedded(
    path: Path = RECORDED, *, workload: Workload = "all", by_benchmark: bool = False
) -> ExpertTraces:
    """Load the recorded requests of one workload. by_benchmark: label them "gsm8k", ... instead of "math".

    Raises CalibrationError where there is no such file, or a damaged one.
    """
    arrays = read_arrays(path, _ARRAYS, _remedy(path, "record_traces"))
    meta = _meta(path, arrays["meta"])
    traces = ExpertTraces(
        model=meta["model"],
        source=meta["source"],
        evidence="engine",
        top_k=meta["top_k"],
        num_layers=meta["num_layers"],
        layers=np.arange(meta["num_layers"]),
        label=arrays["benchmark" if by_benchmark else "label"],
        prompt_tokens=arrays["prompt_tokens"],
        prefill=arrays["prefill"],
        ids=DecodeIds(np.ascontiguousarray(arrays["ids"].transpose(1, 0, 2)), _starts(arrays["tokens"])),
    )
    if workload == "all":
        return traces
    return traces.rows(np.isin(arrays["label"], TASKS) == (workload == "tasks"))


def save(path: Path, traces: ExpertTraces, benchmark: npt.NDArray[np.str_], notes: dict[str, object]) -> None:
    """Write traces with ids as one file, atomically. notes: kept in the file's `meta`, for a reader.

    The ids of a token are sorted and stored layer by layer: deflate then needs about half the bits that a
    fixed width would.
    """
    assert traces.ids is not None
    about = {"model": traces.model, "source": traces.source, "top_k": traces.top_k}
    about |= {"num_layers": traces.num_layers, **notes}
    narrow = np.uint8 if traces.num_experts <= 256 else np.uint16
    with replacing(path) as file:
        np.savez_compressed(
            file,
            ids=np.sort(traces.ids.ids, axis=2).transpose(1, 0, 2).astype(narrow),
            tokens=traces.ids.tokens().astype(np.int32),
            label=traces.label,
            benchmark=benchmark,
            prompt_tokens=traces.prompt_tokens,
            prefill=traces.prefill.astype(np.uint16 if traces.prefill.max() < 2**16 else np.uint32),
            meta=np.array(json.dumps(about)),
        )


def embedded_gates(path: Path = GATES) -> npt.NDArray[np.float32]:
    """Sums over the prompt's tokens of the routers' probabilities, [n, L, E], of the first n requests.

    The requests are those of `embedded()` with workload "all". CalibrationError as there.
    """
    stored = read_arrays(path, ("gates",), _remedy(path, "record_gates"))["gates"]
    return stored.astype(np.float32)


def save_gates(path: Path, gates: npt.NDArray[np.float32]) -> None:
    """Write them in half precision, atomically."""
    with replacing(path) as file:
        np.savez_compressed(file, gates=gates.astype(np.float16))


def _remedy(path: Path, program: str) -> str:
    if path.parent == RECORDED.parent and not path.parent.is_dir():
        return "it is in ELDR's repository, not in the package: run from a checkout (pip install -e .)"
    return f"record it with `python -m eldr.bench.{program}`"


def _starts(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], tokens.cumsum(dtype=np.int64)])


def _meta(path: Path, stored: npt.NDArray[Any]) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads(str(stored))
        return {key: meta[key] for key in ("model", "source", "top_k", "num_layers")}
    except (ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{path} does not say what it holds ({error!r}); record it again") from error
