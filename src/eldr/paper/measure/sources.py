"""The sources of expert choices by name, for settings of pieces: each process loads one once."""

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from eldr.errors import CalibrationError
from eldr.registry import Registry
from eldr.traces import ExpertTraces
from eldr.traces.recorded import deepseek_v2_lite, gpt_oss_20b, traces_folder

SOURCES: Registry[Callable[[], ExpertTraces]] = Registry("source")

SOURCES.register("gpt-oss-20b")(gpt_oss_20b)
SOURCES.register("deepseek-v2-lite")(deepseek_v2_lite)


@functools.lru_cache(maxsize=2)
def traces_of(source: str) -> ExpertTraces:
    """The traces of a registered source. CalibrationError where its data is not there."""
    return SOURCES[source]()


@functools.cache
def qwen3_languages() -> tuple[tuple[str, ...], npt.NDArray[np.float64]]:
    """Languages, and the probability [D, 48, 128] that a prompt token of Qwen3-30B-A3B activates an expert.

    Sums over MGSM questions (school mathematics), so languages differ in little but the language; there are
    no single requests in it. CalibrationError where the data is not there.
    """
    folder = traces_folder()
    path = None if folder is None else folder / "qwen3_30b_a3b_mgsm_8lang_counts.npz"
    if path is None or not path.is_file():
        raise CalibrationError("no counts of Qwen3-30B-A3B; set ELDR_DATA to the folder that holds traces/")
    with np.load(path, allow_pickle=False) as archive:
        counts = {name: archive[name] for name in archive.files}
    return tuple(counts), np.stack([_rates(matrix, top_k=8) for matrix in counts.values()])


def _rates(counts: npt.NDArray[np.float64], top_k: int) -> npt.NDArray[np.float64]:
    rates: npt.NDArray[np.float64] = counts * top_k / counts.sum(axis=1, keepdims=True)
    return rates
