"""Named workloads: shares, local files, and the hub by a stand-in for the library `datasets`."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.calibrate import hub
from eldr.calibrate.benchmarks import BENCHMARKS
from eldr.calibrate.mix import WILDCHAT_SHARES, draw_workload, largest_total, quotas
from eldr.errors import CalibrationError, ConfigError

DOMAIN = {name: BENCHMARKS[name].domain for name in BENCHMARKS.names()}


def write(path: Path, domain: str, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"prompt": f"{path.stem} {n}", "domain": domain}) for n in range(rows)]
    path.write_text("\n".join(lines))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, domain in DOMAIN.items():
        write(tmp_path / "tasks" / f"{name}.jsonl", domain, 20)
    write(tmp_path / "tasks" / "not_ours.jsonl", "code", 20)
    for code, rows in {"en": 60, "zh": 30, "ru": 30, "fr": 30, "pt": 30, "es": 30, "ja": 4, "de": 9}.items():
        write(tmp_path / "languages" / f"{code}.jsonl", code, rows)
    return tmp_path


@given(total=st.integers(0, 3000), shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=12))
def test_quotas_are_the_nearest_whole_numbers(total: int, shares: list[float]) -> None:
    parts = quotas(total, dict(enumerate(shares)))  # type: ignore[arg-type]
    assert sum(parts.values()) == total
    for part, share in zip(parts.values(), shares, strict=True):
        assert abs(part - total * share / sum(shares)) < 1 + 1e-6


@given(shares=st.lists(st.floats(0.02, 1), min_size=1, max_size=6), data=st.data())
def test_the_largest_total_is_the_largest(shares: list[float], data: Any) -> None:
    available = {n: data.draw(st.integers(0, 25)) for n in range(len(shares))}
    named = dict(enumerate(shares))
    total = largest_total(available, named)  # type: ignore[arg-type]

    def fits(n: int) -> bool:
        return all(available[g] >= part for g, part in quotas(n, named).items())  # type: ignore[arg-type]

    assert fits(total)
    assert not any(fits(more) for more in range(total + len(shares) + 1, total + 60))


def test_tasks_are_even_over_domains_and_benchmarks(data: Path) -> None:
    drawn = draw_workload("tasks", 100, data, seed=0)
    assert Counter(p.label for p in drawn.prompts) == {"code": 25, "math": 25, "medical": 25, "law": 25}
    assert set(Counter(p.text.split()[0] for p in drawn.prompts).values()) == {8, 9}
    assert len({p.text for p in drawn.prompts}) == 100
    assert "tasks folder" in drawn.source


def test_languages_have_the_papers_shares(data: Path) -> None:
    drawn = draw_workload("languages", 100, data, seed=0)
    found = Counter(p.label for p in drawn.prompts)
    others = found.pop("ja", 0) + found.pop("de", 0)
    assert {**found, "other": others} == {"en": 48, "zh": 28, "ru": 9, "fr": 2, "pt": 2, "es": 2, "other": 9}


def test_without_a_limit_as_many_as_there_are_in_these_shares(data: Path) -> None:
    drawn = draw_workload("languages", None, data, seed=0)
    assert len(drawn.prompts) == largest_total(
        {"en": 60, "zh": 30, "ru": 30, "fr": 30, "pt": 30, "es": 30, "other": 13}, WILDCHAT_SHARES
    )
    with pytest.raises(CalibrationError, match=f"ask for --limit {len(drawn.prompts)}$"):
        draw_workload("languages", 200, data, seed=0)


def test_repeatable_by_seed(data: Path) -> None:
    first, again, other = (draw_workload("medqa", 10, data, seed).prompts for seed in (1, 1, 2))
    assert first == again != other
    assert {p.label for p in first} == {"medical"}


def test_an_unknown_benchmark_is_named() -> None:
    with pytest.raises(
        ConfigError, match="unknown benchmark 'glue'; choose from tasks, languages, humaneval"
    ):
        draw_workload("glue", None, None, 0)


ROW: dict[str, Any] = {
    "prompt": "def f():", "text": "the text", "test_list": ["assert a", "assert b"], "code": "def f(x): ...",
    "input": "3", "question": "What?", "problem": "Solve.", "choices": ["yes", "no"],
    "endings": ["one", "two"],
    "options": {"A": "first", "B": "second"}, "context": {"contexts": ["Some", "abstract."]},
}  # fmt: skip


class FakeRows:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def shuffle(self, seed: int, buffer_size: int) -> "FakeRows":
        assert buffer_size > 0
        return FakeRows(self.rows[seed % 2 :] + self.rows[: seed % 2])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


class FakeDatasets(SimpleNamespace):
    """Rows by path; calls: the arguments of `load_dataset`. script: paths that are scripts."""

    def __init__(self, rows: dict[str, list[dict[str, Any]]], script: tuple[str, ...] = ()) -> None:
        self.rows, self.script, self.calls = rows, script, []  # type: ignore[var-annotated]

    def load_dataset(self, path: str, name: str | None = None, **options: Any) -> FakeRows:
        assert options["streaming"] is True
        self.calls.append((path, name, options))
        if path in self.script and "revision" not in options:
            raise RuntimeError("Dataset scripts are no longer supported, but found it")
        if path not in self.rows:
            raise ConnectionError(f"Couldn't reach '{path}' on the Hub\nwith a second line")
        return FakeRows(self.rows[path])


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def put(fake: FakeDatasets) -> FakeDatasets:
        monkeypatch.setitem(sys.modules, "datasets", fake)
        return fake

    return put


def test_every_benchmark_makes_prompts_of_the_hubs_rows(install) -> None:
    rows = {BENCHMARKS[name].path: [ROW] * 9 for name in DOMAIN}
    rows["deepmind/aqua_rat"] = [{**ROW, "options": ["A)5", "B)6"]}]
    rows["GBaker/MedQA-USMLE-4-options"] = [{k: v for k, v in ROW.items() if k != "choices"}]
    rows["coastalcph/lex_glue"] = [{**ROW, "context": "It is <HOLDING>."}]
    fake = install(FakeDatasets(rows))
    prompts = {name: hub.benchmark_prompts(name, 5, 0) for name in DOMAIN}
    assert {name: found[0].label for name, found in prompts.items()} == DOMAIN
    text = {name: found[0].text for name, found in prompts.items()}
    assert text["humaneval"] == "Complete the following Python function.\n\n```python\ndef f():\n```"
    assert text["mbpp"] == "the text\nYour code should pass these tests:\n\nassert a\nassert b"
    assert text["cruxeval"].endswith("def f(x): ...\n\nassert f(3) == ??\n```")
    assert (text["gsm8k"], text["math500"]) == ("What?", "Solve.")
    assert text["aqua"] == "What?\nAnswer choices:\nA)5\nB)6"
    assert text["mmlu_law"] == text["mmlu_medical"] == "What?\nA. yes\nB. no"
    assert text["medqa"] == "What?\nA. first\nB. second"
    assert text["pubmedqa"].startswith("Some abstract.\n\nQuestion: What?\n")
    assert text["casehold"].startswith(
        'Given the following excerpt from a US court opinion:\n"It is <HOLDING>."'
    )
    assert text["casehold"].endswith("- one\n- two")
    assert text["legalbench"].startswith("the text\n\nWhat?\n\nHow distinctive is this mark")
    configs = [name for path, name, _ in fake.calls if path == "cais/mmlu"]
    assert configs[:5] == list(BENCHMARKS["mmlu_medical"].configs)
    assert [len(found) for found in prompts.values()].count(5) >= 7


def test_a_dataset_that_is_a_script_is_read_from_its_parquet_branch(install) -> None:
    fake = install(FakeDatasets({"nguha/legalbench": [ROW] * 9}, script=("nguha/legalbench",)))
    assert len(hub.benchmark_prompts("legalbench", 7, 0)) == 7
    path, name, options = fake.calls[1]
    assert (path, name, options["revision"]) == ("nguha/legalbench", None, "refs/convert/parquet")
    assert (options["data_files"], options["split"]) == ("abercrombie/test/*.parquet", "train")


def test_wildchat_fills_its_quotas_and_stops(install) -> None:
    def row(language: str, number: int) -> dict[str, Any]:
        return {"language": language, "conversation": [{"role": "user", "content": f"{language} {number}"}]}

    spoken = ["English", "English", "Chinese", "Korean", "Russian"] * 20
    install(FakeDatasets({hub.WILDCHAT: [row(language, n) for n, language in enumerate(spoken)]}))
    found = hub.wildchat_prompts({"en": 3, "zh": 2, "other": 1}, seed=0)
    assert {language: [p.text for p in prompts] for language, prompts in found.items()} == {
        "en": ["English 0", "English 1", "English 5"],
        "zh": ["Chinese 2", "Chinese 7"],
        "other": ["Korean 3"],
    }
    assert found["zh"][1].origin == "allenai/WildChat-1M:7"
    assert len(hub.wildchat_prompts({"ru": 30}, seed=0)["ru"]) == 20


def test_the_hub_is_asked_only_for_what_the_folder_lacks(install, data: Path) -> None:
    install(FakeDatasets({}))
    assert draw_workload("gsm8k", 5, data, 0).source.startswith("the tasks folder of")
    (data / "tasks" / "gsm8k.jsonl").unlink()
    with pytest.raises(
        CalibrationError, match=r"no rows of openai/gsm8k \(Couldn't reach .* Hub\); .*--data"
    ):
        draw_workload("gsm8k", 5, data, 0)
    install(FakeDatasets({"openai/gsm8k": [{"question": f"q{n}"} for n in range(9)]}))
    assert draw_workload("gsm8k", 5, data, 0).source == "the hub"


def test_rows_of_another_form_and_a_missing_library_are_named(
    install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeDatasets({"openai/gsm8k": [{"text": "q"}]}))
    with pytest.raises(CalibrationError, match=r"openai/gsm8k have another form .*'question'.*\['text'\]"):
        hub.benchmark_prompts("gsm8k", 5, 0)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r'pip install "\.\[datasets\]"'):
        hub.benchmark_prompts("gsm8k", 5, 0)
