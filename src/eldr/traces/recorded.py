"""Expert choices of real models that others published: loaders for the folder `traces` of the data folder.

Both files hold the choices of one text after another. What stands for the prompt is stated at each loader:
neither file says where the prompt ended.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.counting import count_experts
from eldr.errors import CalibrationError
from eldr.traces.archive import read_arrays
from eldr.traces.base import DecodeIds, ExpertTraces

GPT_OSS_PREFILL = 64
"""Tokens at the beginning of a GPT-OSS answer that stand for its prompt."""

MGSM = ("bn", "de", "en", "es", "fr", "ja", "sw", "zh")

ESFT_TASKS = ("intent", "law", "summary", "translation")

Ids = npt.NDArray[np.unsignedinteger[Any]]


def traces_folder() -> Path | None:
    """`traces` in $ELDR_DATA, else in ../shared/data beside the checkout; None where it is not there."""
    named = os.environ.get("ELDR_DATA")
    data = Path(named) if named else Path(__file__).parents[4] / "shared" / "data"
    folder = data / "traces"
    return folder if folder.is_dir() else None


def gpt_oss_20b(folder: Path | None = None, *, prefill_tokens: int = GPT_OSS_PREFILL) -> ExpertTraces:
    """GPT-OSS-20B (24 layers, 32 experts, top-4), greedy answers to 329 questions; label: `broad_label`.

    The file has decode choices only: the first `prefill_tokens` tokens of an answer stand for its prompt, the
    rest are its decode tokens. Shorter answers, which would leave none, are left out. A signature from the
    answer's own beginning predicts the rest at least as well as the question's would: an upper bound.
    """
    arrays = _read(folder, "gpt_oss_20b_decode.npz", ("ids", "lengths", "dataset", "category"))
    answers = np.split(arrays["ids"], arrays["lengths"].cumsum()[:-1])
    labels = map(broad_label, arrays["dataset"].tolist(), arrays["category"].tolist())
    long = [(a, label) for a, label in zip(answers, labels, strict=True) if len(a) > prefill_tokens]
    return _traces(
        [(answer[:prefill_tokens], answer[prefill_tokens:], label) for answer, label in long],
        model="gpt-oss-20b",
        source="GPT-OSS-20B's recorded decode choices, "
        f"the first {prefill_tokens} tokens of an answer for its prompt",
        num_experts=32,
    )


def deepseek_v2_lite(folder: Path | None = None) -> ExpertTraces:
    """ESFT-vanilla-lite (DeepSeek-V2-Lite: 26 MoE layers, 64 experts, top-6) on four tasks, teacher-forced.

    The first half of a sequence stands for its prompt, the second for what was decoded. Labels are the tasks.
    """
    names = [f"{task}_{part}" for task in ESFT_TASKS for part in ("ids", "seqlen")]
    arrays = _read(folder, "deepseek_v2_lite_esft.npz", names)
    texts = [
        (text, task)
        for task in ESFT_TASKS
        for text in np.split(arrays[f"{task}_ids"], arrays[f"{task}_seqlen"].cumsum()[:-1])
    ]
    return _traces(
        [(text[: len(text) // 2], text[len(text) // 2 :], task) for text, task in texts],
        model="deepseek-v2-lite",
        source="ESFT's recorded choices of DeepSeek-V2-Lite on given texts, "
        "the first half of a text for its prompt",
        num_experts=64,
    )


@dataclass(frozen=True, slots=True)
class QwenCounts:
    """Qwen3-30B-A3B (48 layers, 128 experts, top-8) as a whole, without single requests.

    Rates float64 [48, 128], the probability that a token activates an expert. languages: prefill of the same
    mathematics questions in each language (MGSM); decode: answers to instructions and code questions.
    """

    languages: dict[str, npt.NDArray[np.float64]]
    decode: npt.NDArray[np.float64]


def qwen3_30b(folder: Path | None = None) -> QwenCounts:
    """Load what is known of Qwen3-30B-A3B."""
    languages = _read(folder, "qwen3_30b_a3b_mgsm_8lang_counts.npz", MGSM)
    decode = _read(folder, "qwen3_30b_a3b_decode_heat.npz", ("coactivation_qwen3-30b-a3b",))
    return QwenCounts(
        {name: _to_rates(counts) for name, counts in languages.items()}, _to_rates(*decode.values())
    )


def _to_rates(counts: npt.NDArray[Any], top_k: int = 8) -> npt.NDArray[np.float64]:
    wide = counts.astype(np.float64)
    rates: npt.NDArray[np.float64] = top_k * wide / wide.sum(axis=1, keepdims=True)
    return rates


def broad_label(dataset: str, category: str) -> str:
    """The domain of a question of the GPT-OSS file: a handful of fields for its 130 categories."""
    if dataset == "sorry_bench_base":
        return "safety"
    words = category.lower()
    fields = (label for label, stems in _FIELDS.items() if any(stem in words for stem in stems))
    return next(fields, "other")


_FIELDS = {
    label: stems.split()
    for label, stems in {
        "medicine": "medic clinical anatomy nutrition virology aging health biology genetic",
        "law": "law jurisprud politic policy security_studies",
        "computing": "comput machine_learning",
        "mathematics": "math algebra statistics econometrics formal_logic",
        "physics": "physic relativ quantum electro optic mechanics astro electrical engineering",
        "chemistry": "chemis",
        "humanities": "history philosoph moral religion fallac geography sociology psycholog sexual",
        "business": "business account econom marketing management relations",
    }.items()
}


def _traces(
    requests: list[tuple[Ids, Ids, str]], *, model: str, source: str, num_experts: int
) -> ExpertTraces:
    if not requests:
        raise CalibrationError(f"the traces of {model} hold no request that is long enough")
    prompts, answers, labels = (list(part) for part in zip(*requests, strict=True))
    layers, top_k = prompts[0].shape[1:]
    return ExpertTraces(
        model=model,
        source=source,
        evidence="trace",
        top_k=top_k,
        num_layers=layers,
        layers=np.arange(layers),
        label=np.array(labels),
        prompt_tokens=np.array([len(prompt) for prompt in prompts], np.int32),
        prefill=np.stack([count_experts(prompt, num_experts) for prompt in prompts]),
        ids=DecodeIds.join(answers),
    )


def _read(folder: Path | None, name: str, names: Sequence[str]) -> dict[str, Any]:
    folder = folder or traces_folder() or Path("traces")
    return read_arrays(folder / name, names, f"set ELDR_DATA to the folder that holds traces/{name}")
