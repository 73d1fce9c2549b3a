"""Make the shipped prompts: `python -m eldr.embedded.make_prompts`.

The embedded model continues short starters that were written for this project, so the prompts look like its
training domains and nobody else's text is shipped.
"""

import json
from pathlib import Path

import click
import numpy as np
from rich.progress import track
from tokenizers import Tokenizer

from eldr.embedded import model_path
from eldr.embedded.export import load_network
from eldr.embedded.network import Network
from eldr.embedded.sampling import sample
from eldr.embedded.starters import STARTERS
from eldr.errors import ConfigError
from eldr.files import replacing
from eldr.program import EXISTING_FOLDER, run

PROMPTS = 100  # a domain
SAMPLES = 14  # of each starter; some are unusable
TOKENS = (64, 160)  # shortest and longest prompt
TEMPERATURE = 0.8
BROKEN = "\ufffd"  # half a character


def make_prompts(network: Network, tokenizer: Tokenizer, starters: list[str], seed: int) -> list[str]:
    """PROMPTS prompts of TOKENS[0] to TOKENS[1] tokens; ConfigError where too few are usable."""
    rng = np.random.default_rng(seed)
    beginnings = [encoding.ids for encoding in tokenizer.encode_batch(starters, add_special_tokens=False)]
    texts = sample(network, beginnings * SAMPLES, TOKENS[1], seed, TEMPERATURE).texts
    lengths = rng.integers(TOKENS[0], TOKENS[1] + 1, len(texts))
    cut = (tokenizer.decode(ids[:length]) for ids, length in zip(texts.tolist(), lengths, strict=True))
    prompts = {text.split(BROKEN)[0].rstrip() for text in cut}
    usable = sorted(prompt for prompt in prompts if _fits(tokenizer, prompt))
    if len(usable) < PROMPTS:
        raise ConfigError(
            f"{len(usable)} usable prompts from {starters[0]!r}...; {PROMPTS} wanted: add starters"
        )
    return [usable[index] for index in rng.permutation(len(usable))[:PROMPTS]]


def _fits(tokenizer: Tokenizer, prompt: str) -> bool:
    return TOKENS[0] <= len(tokenizer.encode(prompt, add_special_tokens=False).ids) <= TOKENS[1]


@click.command()
@click.option("--model", type=EXISTING_FOLDER, default=None, help="Model folder; the shipped one if absent.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Folder; the package's if absent.")
def main(model: Path | None, out: Path | None) -> None:
    """Sample prompts for every domain into OUT/<domain>.jsonl."""
    model, out = model or model_path(), out or Path(__file__).parent / "prompts"
    network, tokenizer = load_network(model), Tokenizer.from_file(str(model / "tokenizer.json"))
    for seed, (domain, starters) in enumerate(track(STARTERS.items(), "sampling prompts")):
        rows = ({"prompt": p, "domain": domain} for p in make_prompts(network, tokenizer, starters, seed))
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with replacing(out / f"{domain}.jsonl") as file:
            file.write(lines.encode())


if __name__ == "__main__":
    run(main)
