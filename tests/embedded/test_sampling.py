"""Sampling with its routing, and prompts made from starters."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from tokenizers import Tokenizer  # noqa: E402

from eldr.embedded import make_prompts, model_path  # noqa: E402
from eldr.embedded.data import DOMAINS, END_OF_TEXT_ID  # noqa: E402
from eldr.embedded.export import load_network  # noqa: E402
from eldr.embedded.sampling import sample  # noqa: E402
from eldr.embedded.starters import STARTERS  # noqa: E402
from eldr.errors import ConfigError  # noqa: E402
from embedded.small import SHAPE, small_network, small_tokenizer  # noqa: E402

PROMPTS = [list(range(1, 11)), list(range(11, 19)), list(range(21, 35))]
TOKENS = 20


def test_texts_begin_with_their_prompts() -> None:
    texts = sample(small_network(), PROMPTS, TOKENS, seed=1).texts
    assert texts.shape == (3, TOKENS)
    for text, prompt in zip(texts.tolist(), PROMPTS, strict=True):
        assert text[: len(prompt)] == prompt


def test_choices_are_those_of_one_forward_over_the_whole_text() -> None:
    network = small_network()
    sampled = sample(network, PROMPTS, TOKENS, seed=1)
    with torch.inference_mode():
        choices = network(torch.from_numpy(sampled.texts[:, :-1])).choices
    expected = choices.view(SHAPE.num_layers, 3, TOKENS - 1, SHAPE.top_k).permute(1, 2, 0, 3).numpy()
    assert np.array_equal(sampled.choices, expected)


def test_sampling_repeats_by_seed_and_never_ends_a_text() -> None:
    network = small_network()
    first, again, other = (sample(network, PROMPTS, 40, seed=seed).texts for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (first != END_OF_TEXT_ID).all()


def test_low_temperature_takes_the_likeliest() -> None:
    network = small_network()
    prompt = PROMPTS[0]
    with torch.inference_mode():
        logits = network(torch.tensor([prompt])).logits[0, -1]
    likeliest = int(logits[END_OF_TEXT_ID + 1 :].argmax()) + END_OF_TEXT_ID + 1
    assert sample(network, [prompt], len(prompt) + 1, seed=0, temperature=1e-4).texts[0, -1] == likeliest


def test_starters_for_every_domain() -> None:
    assert tuple(STARTERS) == DOMAINS
    assert all(len(set(starters)) == 10 for starters in STARTERS.values())


def test_prompts_keep_to_their_lengths_and_begin_with_a_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_prompts, "PROMPTS", 5)
    monkeypatch.setattr(make_prompts, "SAMPLES", 4)
    network, tokenizer = load_network(model_path()), Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    starters = tuple(STARTERS["zh"][:2])  # characters of several bytes: a sample can end within one
    prompts = make_prompts.make_prompts(network, tokenizer, list(starters), seed=0)
    assert len(set(prompts)) == 5
    for prompt in prompts:
        assert prompt.startswith(starters)
        assert make_prompts.BROKEN not in prompt
        assert 64 <= len(tokenizer.encode(prompt).ids) <= 160


def test_too_few_usable_prompts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_prompts, "PROMPTS", 1000)
    with pytest.raises(ConfigError, match="1000 wanted"):
        make_prompts.make_prompts(small_network(), small_tokenizer(), ["a few"], seed=0)
