import json
from collections import Counter

import pytest

from eldr.bench.workload import cut, data_folder, load_workload
from eldr.errors import CalibrationError


@pytest.fixture
def folder(tmp_path):
    for label in ("law", "zh", "code"):
        rows = [{"prompt": f"{label} 提示 {n}", "domain": label} for n in range(20)] * 2  # every prompt twice
        (tmp_path / f"{label}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def test_halves_are_disjoint_balanced_and_repeatable(folder) -> None:
    workload = load_workload(folder, 25, seed=4)
    for half in (workload.calibration, workload.evaluation):
        assert sorted(Counter(prompt.label for prompt in half).values()) == [8, 8, 9]
        assert len({prompt.text for prompt in half}) == 25
    assert not {p.text for p in workload.calibration} & {p.text for p in workload.evaluation}
    assert load_workload(folder, 25, seed=4) == workload
    assert load_workload(folder, 25, seed=5) != workload


def test_too_few_prompts_are_named(folder) -> None:
    with pytest.raises(CalibrationError, match="20 prompts of 'code', 22 needed"):
        load_workload(folder, 33)


def test_a_cut_never_breaks_a_character() -> None:
    text = "aé漢😀" * 50
    for size in range(1, 120):
        short = cut(text, size)
        assert text.startswith(short)
        assert size - 4 < len(short.encode()) <= size


def test_the_data_folder_is_named_by_the_environment(tmp_path, monkeypatch) -> None:
    (tmp_path / "tasks").mkdir()
    monkeypatch.setenv("ELDR_DATA", str(tmp_path))
    assert data_folder() is None
    (tmp_path / "languages").mkdir()
    assert data_folder() == tmp_path
    monkeypatch.setenv("ELDR_DATA", "")
    assert data_folder() != tmp_path


def test_real_prompts_cover_the_ten_domains() -> None:
    if data_folder() is None:
        pytest.skip("no data folder: set ELDR_DATA")
    workload = load_workload(None, 100)
    assert set(Counter(p.label for p in workload.evaluation).values()) == {10}
    assert len({p.label for p in workload.evaluation}) == 10
