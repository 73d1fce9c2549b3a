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


def test_the_tests_that_the_table_of_faults_names_exist() -> None:
    rows = section(OPERATIONS, "Faults of other routers, and the tests that keep them out")
    named = re.findall(r"`(\w+/\w+)`: ((?:test_\w+(?:, )?)+)", rows)
    assert len(named) > 15
    for file, tests in named:
        text = (DOCS.parent / "tests" / f"{file}.py").read_text(encoding="utf-8")
        assert [name for name in re.findall(r"\w+", tests) if f"def {name}(" not in text] == []
