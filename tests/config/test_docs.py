"""The documents name every setting, flag, metric and record field that there is, and no other."""

import re
from pathlib import Path

from eldr.cli.serve import command
from eldr.config import Config, load_config
from eldr.metrics.decisions import DecisionRecord
from eldr.metrics.prometheus import RouterMetrics
from eldr.metrics.records import RequestRecord

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")
FAULTS = (DOCS / "faults.md").read_text(encoding="utf-8")
TESTS = DOCS.parent / "tests"
HEADINGS = ("| what ", "| fault ")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_file_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", OPERATIONS, re.S)
    assert example is not None
    (tmp_path / "eldr.yaml").write_text(example[1])
    config = load_config(str(tmp_path / "eldr.yaml"), {})
    assert [worker.name for worker in config.decode] == ["gpu-7", "gpu-8"]


def test_settings_and_flags() -> None:
    rows = [row.split("|") for row in section(OPERATIONS, "Settings").splitlines() if row.startswith("| `")]
    keys = {key.partition(".")[0] for row in rows for key in re.findall(r"`([\w.]+)`", row[1])}
    assert keys == set(Config.__struct_fields__)
    flags = {flag for row in rows for flag in re.findall(r"--[\w-]+", row[2])}
    known = {option for parameter in command.params for option in parameter.opts}
    assert flags == known - {"--config"}


def test_metrics() -> None:
    names = set(re.findall(r"^\| `(eldr_\w+)` \|", METRICS, re.M))
    families = RouterMetrics().registry.collect()
    assert names == {f"{one.name}_total" if one.type == "counter" else one.name for one in families}


def test_record_fields() -> None:
    rows = [row.split("|")[1] for row in section(METRICS, "Records").splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(
        RequestRecord.__struct_fields__
    )


def test_decision_log_fields() -> None:
    rows = [
        row.split("|")[1] for row in section(METRICS, "Decision log").splitlines() if row.startswith("| `")
    ]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(
        DecisionRecord.__struct_fields__
    )


NAMED = re.findall(r"\[(test_\w+)\]\(\.\./tests/(\w+/\w+)\.py\)", FAULTS)
"""Tests that docs/faults.md names: function, file."""


def test_the_tests_that_the_faults_name_exist() -> None:
    assert len(NAMED) > 80
    assert len(NAMED) == FAULTS.count("](../tests/"), "every link to a test is of the form that is read here"
    texts = {file: (TESTS / f"{file}.py").read_text(encoding="utf-8") for _, file in NAMED}
    assert [name for name, file in NAMED if f"def {name}(" not in texts[file]] == []


def test_every_file_of_conformance_tests_is_named_among_the_faults() -> None:
    there = {f"conformance/{path.stem}" for path in (TESTS / "conformance").glob("test_*.py")}
    assert there <= {file for _, file in NAMED}


def test_every_fault_names_a_test() -> None:
    rows = [row for row in FAULTS.splitlines() if row.startswith("| ") and not row.startswith(HEADINGS)]
    assert len(rows) > 60
    assert [row for row in rows if "](../tests/" not in row] == []


def test_what_the_faults_count_is_a_metric_with_that_label() -> None:
    known = OPERATIONS + METRICS
    for name, labels in re.findall(r"`(eldr_\w+)(?:\{([^}]*)\})?", FAULTS):
        assert f"| `{name}` |" in METRICS
        assert [one for one in re.findall(r'"(\w+)"', labels) if f"`{one}`" not in known] == []
