"""The shipped model and prompts as a user of the package gets them, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eldr.embedded import model_path, prompts_path
from eldr.embedded.card import card

DOMAINS = ("code", "math", "medicine", "law", "en", "zh", "ru", "fr", "es", "de")


def test_model_is_complete_and_small() -> None:
    files = {path.name: path.stat().st_size for path in model_path().iterdir()}
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert wanted <= files.keys()
    assert sum(files.values()) <= 30e6


def test_config_is_a_mixture_of_experts() -> None:
    config = json.loads((model_path() / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert (config["num_hidden_layers"], config["num_experts"], config["num_experts_per_tok"]) == (4, 64, 4)


def test_prompts_of_every_domain() -> None:
    for domain in DOMAINS:
        rows = [json.loads(line) for line in (prompts_path() / f"{domain}.jsonl").read_text().splitlines()]
        assert len(rows) >= 80
        assert {row["domain"] for row in rows} == {domain}
        assert len({row["prompt"] for row in rows}) == len(rows)


def test_prompt_lengths() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    for path in prompts_path().glob("*.jsonl"):
        prompts = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
        lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(prompts)]
        assert min(lengths) >= 64
        assert max(lengths) <= 160


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x + 1234\n",
        "Чтобы изменить цвет",
        "要更改线条的颜色，请选择",
        "Où ? Ça coûte 5 €",
        "🙂\t\n",
    ],
)
def test_tokenizer_round_trip(text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_digit_is_a_token() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    assert tokenizer.encode("12345").tokens == list("12345")


def test_card_is_written_from_the_measurement_beside_it() -> None:
    training, measured = (
        json.loads((model_path() / f"{name}.json").read_text()) for name in ("training", "measured")
    )
    assert (model_path() / "README.md").read_text() == card(training, measured)
    assert measured["correlation"]["pooled"] > 0.9
    assert all(row["change"] < -0.2 for row in measured["active_experts"]["all"])
    assert measured["unused_experts"] <= 2


def test_import_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, eldr.embedded as e; e.model_path(); e.prompts_path(); "
        f"e.wide_model(65, pathlib.Path({str(tmp_path)!r})); "
        "sys.exit(bool({'torch', 'transformers', 'tokenizers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_no_machine_path_in_shipped_text() -> None:
    for path in model_path().iterdir():
        if path.suffix in (".json", ".md"):
            assert f"/{Path(__file__).parts[1]}/" not in path.read_text()
