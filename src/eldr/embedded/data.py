"""The training text: ten domains, one xz-compressed JSON-lines file each, and the tokenizer made from it.

A data folder holds `<domain>.jsonl.xz` for every domain of DOMAINS; each line is `{"split": "train" | "val",
"text": str}`.
"""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from eldr.errors import ConfigError

TASKS = ("code", "math", "medicine", "law")
LANGUAGES = ("en", "zh", "ru", "fr", "es", "de")
DOMAINS = TASKS + LANGUAGES
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0

Tokens = NDArray[np.uint16]

_TOKENIZER_BYTES = 1_000_000
_TOKENIZER_BYTES_OTHER_SCRIPT = 1_300_000  # zh and ru share no words with the rest and need more merges


def read_texts(data: Path, domain: str, split: str) -> list[str]:
    """All texts of one domain and split, in file order. Raises ConfigError for a missing or damaged file."""
    path = data / f"{domain}.jsonl.xz"
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        texts = [str(row["text"]) for row in rows if row["split"] == split]
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; --data needs <domain>.jsonl.xz for {', '.join(DOMAINS)}"
        ) from error
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{path} is damaged ({error}); each line must be {{"split": ..., "text": ...}}'
        ) from error
    if not texts:
        raise ConfigError(f"{path} has no text of split {split!r}; each domain needs both train and val")
    return texts


def train_tokenizer(texts: dict[str, list[str]], vocab_size: int) -> Tokenizer:
    """Byte-level BPE over about a megabyte a domain; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    samples = [_sample(texts[domain], domain) for domain in sorted(texts)]
    tokenizer.train_from_iterator((text for sample in samples for text in sample), trainer)
    return tokenizer


def _sample(texts: Sequence[str], domain: str) -> list[str]:
    """Texts spread over the whole domain, up to its share of bytes."""
    wanted = _TOKENIZER_BYTES_OTHER_SCRIPT if domain in ("zh", "ru") else _TOKENIZER_BYTES
    sample, size = [], 0
    for index in np.random.default_rng(0).permutation(len(texts)):
        if size >= wanted:
            break
        sample.append(texts[index])
        size += len(texts[index].encode())
    return sample


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """All texts as one stream of token ids, each text closed by END_OF_TEXT."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        ids.extend(encoding.ids)
        ids.append(END_OF_TEXT_ID)
    return np.array(ids, dtype=np.uint16)


class MixedBatches:
    """Batches whose sequences come from the domains in turn, so that every batch mixes all of them.

    A batch is a pure function of its step, so a resumed run sees the data it would have seen. Windows of one
    domain do not overlap and come in a new random order in each pass over it.
    """

    def __init__(
        self, streams: Sequence[Tokens], sequence_tokens: int, batch_sequences: int, seed: int = 0
    ) -> None:
        self._streams = streams
        self._sequence_tokens = sequence_tokens
        self._batch_sequences = batch_sequences
        self._seed = seed
        self._orders: dict[tuple[int, int], NDArray[np.int64]] = {}

    def batch(self, step: int) -> NDArray[np.int64]:
        """Token ids [batch_sequences, sequence_tokens + 1]: the inputs and, one further, the targets."""
        first = step * self._batch_sequences
        return np.stack([self._sequence(index) for index in range(first, first + self._batch_sequences)])

    def _sequence(self, index: int) -> NDArray[np.int64]:
        turn, domain = divmod(index, len(self._streams))
        stream = self._streams[domain]
        windows = (len(stream) - 1) // self._sequence_tokens
        epoch, position = divmod(turn, windows)
        start = int(self._order(domain, epoch, windows)[position]) * self._sequence_tokens
        return stream[start : start + self._sequence_tokens + 1].astype(np.int64)

    def _order(self, domain: int, epoch: int, windows: int) -> NDArray[np.int64]:
        key = (domain, epoch)
        if key not in self._orders:
            self._orders[key] = np.random.default_rng((self._seed, domain, epoch)).permutation(windows)
        return self._orders[key]
