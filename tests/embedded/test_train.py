"""The training command from a data folder to a model that loads, interrupted in between."""

import json
import lzma
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from click.testing import CliRunner  # noqa: E402

from eldr.embedded import train  # noqa: E402
from eldr.embedded.data import DOMAINS  # noqa: E402
from eldr.embedded.export import load_network  # noqa: E402

pytestmark = pytest.mark.engine  # two processes and a network of full size


def write_data(folder: Path) -> Path:
    """A data folder of the real form whose texts count."""
    folder.mkdir()
    for domain in DOMAINS:
        with lzma.open(folder / f"{domain}.jsonl.xz", "wt", encoding="utf-8") as file:
            for split in ("train", "val"):
                text = " ".join(f"{domain} {i}" for i in range(400))
                file.write(json.dumps({"split": split, "text": text}) + "\n")
    return folder


def run(data: Path, out: Path, steps: int) -> dict[str, int]:
    result = CliRunner().invoke(train.main, ["--data", str(data), "--out", str(out), "--steps", str(steps)])
    assert result.exit_code == 0, result.output
    facts: dict[str, int] = json.loads((out / "model" / "training.json").read_text())
    return facts


def test_trains_and_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    assert run(data, out, 2)["steps"] == 2
    first = load_network(out / "model")
    facts = run(data, out, 3)
    assert (facts["steps"], facts["tokens"]) == (3, 3 * 24 * 256)
    second = load_network(out / "model")
    change = first.embed_tokens.weight - second.embed_tokens.weight
    assert 0 < change.abs().max() < 0.01  # one step at the start of the warm-up, not a new start
    assert all(torch.isfinite(parameter).all() for parameter in second.parameters())
