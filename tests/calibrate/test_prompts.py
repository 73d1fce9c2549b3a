import pytest

from eldr.calibrate.prompts import read_prompts
from eldr.errors import CalibrationError


def test_a_folder_is_read_in_name_order_with_either_label_key(tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_text('{"prompt": "two", "label": "law"}\n\n{"prompt": "three"}\n')
    (tmp_path / "a.jsonl").write_text('{"prompt": "one", "domain": "code", "reference": null}\n')
    (tmp_path / "notes.md").write_text("not a prompt file")
    (tmp_path / "sub" / "c.jsonl").write_text('{"prompt": "four", "domain": "zh"}')
    found = read_prompts(tmp_path)
    assert [(p.text, p.label, p.origin) for p in found.prompts] == [
        ("one", "code", "a.jsonl:1"),
        ("two", "law", "b.jsonl:1"),
        ("three", "", "b.jsonl:3"),
        ("four", "zh", "c.jsonl:1"),
    ]
    assert found.skipped == []


def test_damaged_lines_are_named_and_skipped(tmp_path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"prompt": "good"}\n{"prompt": \n[1]\n{"prompt": "  "}\n{"prompt": 3}\n\xff\xfe\n')
    found = read_prompts(file)
    assert [p.text for p in found.prompts] == ["good"]
    assert [line.split(" ")[0] for line in found.skipped] == [f"p.jsonl:{n}:" for n in range(2, 7)]


@pytest.mark.parametrize("content", ["", "\n\n", '{"domain": "code"}\n'])
def test_no_prompt_at_all_is_an_error(tmp_path, content: str) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(CalibrationError, match="holds no prompt"):
        read_prompts(tmp_path / "p.jsonl")


def test_a_missing_file_is_an_error(tmp_path) -> None:
    with pytest.raises(CalibrationError, match="no prompt file at"):
        read_prompts(tmp_path / "absent.jsonl")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path) -> None:
    (tmp_path / "p.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(CalibrationError, match=r"cannot read .*p\.jsonl: No such file"):
        read_prompts(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n', encoding="utf-8-sig")
    assert [p.text for p in read_prompts(tmp_path / "p.jsonl").prompts] == ["one"]
