from pathlib import Path

import numpy as np
import pytest

from eldr.counting import count_experts
from eldr.errors import CalibrationError
from eldr.traces import recorded
from traces.made_up import esft_file, gpt_oss_file


def test_gpt_oss_begins_with_its_prefill(tmp_path: Path) -> None:
    chosen = gpt_oss_file(tmp_path, [5, 2, 4])
    traces = recorded.gpt_oss_20b(tmp_path, prefill_tokens=3)
    assert traces.label.tolist() == ["medicine", "mathematics"]  # the answer of two tokens is left out
    assert (traces.num_layers, traces.num_experts, traces.top_k) == (3, 32, 4)
    assert traces.ids is not None
    np.testing.assert_array_equal(traces.ids.of(0), chosen[3:5])
    np.testing.assert_array_equal(traces.ids.of(1), chosen[10:11])
    np.testing.assert_array_equal(traces.prefill[1], count_experts(chosen[7:10], 32))
    assert traces.prompt_tokens.tolist() == [3, 3]


def test_answers_that_are_all_too_short(tmp_path: Path) -> None:
    gpt_oss_file(tmp_path, [5, 2])
    with pytest.raises(CalibrationError, match="long enough"):
        recorded.gpt_oss_20b(tmp_path, prefill_tokens=5)


def test_esft_halves_each_text(tmp_path: Path) -> None:
    lengths = {"intent": [4, 3], "law": [2], "summary": [6], "translation": [2]}
    chosen = esft_file(tmp_path, lengths)
    traces = recorded.deepseek_v2_lite(tmp_path)
    assert traces.label.tolist() == ["intent", "intent", "law", "summary", "translation"]
    assert traces.prompt_tokens.tolist() == [2, 1, 1, 3, 1]
    assert traces.ids is not None
    assert traces.ids.tokens().tolist() == [2, 2, 1, 3, 1]
    np.testing.assert_array_equal(traces.prefill[1], count_experts(chosen["intent"][4:5], 64))
    np.testing.assert_array_equal(traces.ids.of(1), chosen["intent"][5:7])


def test_absent_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="set ELDR_DATA"):
        recorded.gpt_oss_20b(tmp_path)
    (tmp_path / "gpt_oss_20b_decode.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(CalibrationError, match="damaged"):
        recorded.gpt_oss_20b(tmp_path)
    np.savez(tmp_path / "gpt_oss_20b_decode.npz", ids=np.zeros((1, 3, 4), np.uint8))
    with pytest.raises(CalibrationError, match="lengths"):
        recorded.gpt_oss_20b(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "category", "label"),
    [
        ("sorry_bench_base", "Medical Advice", "safety"),
        ("mmlu_test", "high_school_biology", "medicine"),
        ("gpqa_main", "Quantum Mechanics", "physics"),
        ("mmlu_dev", "high_school_macroeconomics", "business"),
        ("mmlu_dev", "miscellaneous", "other"),
    ],
)
def test_broad_labels(dataset: str, category: str, label: str) -> None:
    assert recorded.broad_label(dataset, category) == label


def test_the_published_files() -> None:
    """What the notes beside the files say of them."""
    if recorded.traces_folder() is None:
        pytest.skip("no traces of real models: set ELDR_DATA to the data folder")
    gpt_oss = recorded.gpt_oss_20b()
    assert (gpt_oss.num_layers, gpt_oss.num_experts, gpt_oss.top_k) == (24, 32, 4)
    assert gpt_oss.ids is not None
    assert len(gpt_oss) == 314
    assert (gpt_oss.prefill.sum(axis=2) == recorded.GPT_OSS_PREFILL * 4).all()
    esft = recorded.deepseek_v2_lite()
    assert (esft.num_layers, esft.num_experts, esft.top_k, len(esft)) == (26, 64, 6, 213)
