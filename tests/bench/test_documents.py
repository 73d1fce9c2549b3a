"""Numbers in documents come from the files of the benchmarks, and nothing else in a page is touched."""

import json
from pathlib import Path

import pytest

from eldr.bench.capture_page import PART, cost
from eldr.bench.documents import replace_part
from eldr.bench.results_page import readme_part, results_page
from eldr.errors import ConfigError

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "docs" / "bench"


def page(folder: Path, text: str) -> Path:
    file = folder / "page.md"
    file.write_text(text)
    return file


def part_of(file: Path, name: str) -> str:
    _, _, rest = file.read_text().partition(f"<!-- begin {name} -->\n")
    text, end, _ = rest.partition(f"\n<!-- end {name} -->")
    assert end, f"{file.name} has no part {name!r}"
    return text


def test_a_part_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    file = page(tmp_path, "a\n<!-- begin x -->\nold\nold\n<!-- end x -->\nb\n")
    replace_part(file, "x", r"new \1")
    assert file.read_text() == "a\n<!-- begin x -->\nnew \\1\n<!-- end x -->\nb\n"
    replace_part(file, "x", "newer")
    assert part_of(file, "x") == "newer"


@pytest.mark.parametrize("text", ["no marks", "<!-- begin x -->\nno end", "<!-- begin y -->\n<!-- end y -->"])
def test_missing_marks_are_an_error_and_the_page_stays(tmp_path: Path, text: str) -> None:
    file = page(tmp_path, text)
    with pytest.raises(ConfigError, match="'x'"):
        replace_part(file, "x", "new")
    assert file.read_text() == text


def test_results_are_what_the_benchmarks_kept() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results_page(BENCH), "run `make results`"
    assert part_of(ROOT / "README.md", "results") == readme_part(BENCH), "run `make results`"


def test_the_cost_of_capture_is_what_its_benchmark_kept() -> None:
    report = json.loads((BENCH / "capture.json").read_text())
    assert part_of(ROOT / "docs" / "capture.md", PART) == cost(report), "run eldr.bench.capture_page"
