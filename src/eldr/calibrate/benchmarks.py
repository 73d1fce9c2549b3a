"""Public benchmarks of four domains: where the hub has them, and how a row becomes a prompt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eldr.registry import Registry

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark on the hub.

    domain: the label of its prompts. path, configs, split: as `datasets.load_dataset` takes them; every
    config gives an equal part. text: makes the prompt of a row, given its config as `config`.
    """

    domain: str
    path: str
    text: Callable[..., str]
    configs: tuple[str | None, ...] = (None,)
    split: str = "test"


BENCHMARKS: Registry[Benchmark] = Registry("benchmark")

LEGALBENCH = {
    "abercrombie": "How distinctive is this mark: generic, descriptive, suggestive, arbitrary or fanciful?",
    "contract_qa": "Does the clause do what the question asks? Answer Yes or No.",
    "hearsay": "Is there hearsay? Answer Yes or No.",
    "personal_jurisdiction": "Is there personal jurisdiction? Answer Yes or No.",
    "proa": "Does the statute contain a private right of action? Answer Yes or No.",
}
"""Tasks of LegalBench, and what to ask; the hub has their texts without their instructions."""


def field(name: str) -> Callable[..., str]:
    """A prompt that is one column of the row."""
    return lambda row, config: str(row[name])  # noqa: ARG005


def choices(question: str, options: Any) -> str:
    """A question and its options, as a list or by letter, on lines of their own."""
    named = options.items() if isinstance(options, Mapping) else zip("ABCDEFGH", options, strict=False)
    return "\n".join([question, *(f"{letter}. {option}" for letter, option in named)])


def _humaneval(row: Row, config: str) -> str:  # noqa: ARG001
    return f"Complete the following Python function.\n\n```python\n{row['prompt']}\n```"


def _mbpp(row: Row, config: str) -> str:  # noqa: ARG001
    return "\n".join([row["text"], "Your code should pass these tests:", "", *row["test_list"]])


def _cruxeval(row: Row, config: str) -> str:  # noqa: ARG001
    task = "Work out what the function returns and give the complete assertion."
    return f"{task}\n\n```python\n{row['code']}\n\nassert f({row['input']}) == ??\n```"


def _aqua(row: Row, config: str) -> str:  # noqa: ARG001
    return "\n".join([row["question"], "Answer choices:", *row["options"]])


def _question(row: Row, config: str) -> str:  # noqa: ARG001
    return choices(row["question"], row["choices"] if "choices" in row else row["options"])


def _pubmedqa(row: Row, config: str) -> str:  # noqa: ARG001
    abstract = " ".join(row["context"]["contexts"])
    return f"{abstract}\n\nQuestion: {row['question']}\nAnswer with yes, no or maybe, and explain."


def _casehold(row: Row, config: str) -> str:  # noqa: ARG001
    endings = "\n".join(f"- {ending}" for ending in row["endings"])
    return (
        f'Given the following excerpt from a US court opinion:\n"{row["context"]}"\n'
        f"Which holding belongs in the place of <HOLDING>?\n{endings}"
    )


def _legalbench(row: Row, config: str) -> str:
    parts = [str(row[name]) for name in ("text", "question") if row.get(name)]
    return "\n\n".join([*parts, LEGALBENCH[config]])


_MEDICAL = ("anatomy", "clinical_knowledge", "college_medicine", "medical_genetics", "professional_medicine")
_LAW = ("professional_law", "jurisprudence", "international_law")

for _name, _benchmark in {
    "humaneval": Benchmark("code", "openai/openai_humaneval", _humaneval),
    "mbpp": Benchmark("code", "google-research-datasets/mbpp", _mbpp, ("full",)),
    "cruxeval": Benchmark("code", "cruxeval-org/cruxeval", _cruxeval),
    "gsm8k": Benchmark("math", "openai/gsm8k", field("question"), ("main",)),
    "math500": Benchmark("math", "HuggingFaceH4/MATH-500", field("problem")),
    "aqua": Benchmark("math", "deepmind/aqua_rat", _aqua, ("raw",)),
    "mmlu_medical": Benchmark("medical", "cais/mmlu", _question, _MEDICAL),
    "medqa": Benchmark("medical", "GBaker/MedQA-USMLE-4-options", _question),
    "pubmedqa": Benchmark("medical", "qiaojin/PubMedQA", _pubmedqa, ("pqa_labeled",), "train"),
    "mmlu_law": Benchmark("law", "cais/mmlu", _question, _LAW),
    "casehold": Benchmark("law", "coastalcph/lex_glue", _casehold, ("case_hold",)),
    "legalbench": Benchmark("law", "nguha/legalbench", _legalbench, tuple(LEGALBENCH)),
}.items():
    BENCHMARKS.register(_name)(_benchmark)
