"""Benchmarks from the Hugging Face hub, through the `datasets` library (the extra "datasets")."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from eldr.calibrate.benchmarks import BENCHMARKS, Row
from eldr.calibrate.prompts import Prompt
from eldr.errors import CalibrationError, ConfigError

PARQUET = "refs/convert/parquet"
"""The branch on which the hub keeps every public dataset as Parquet files, CONFIG/SPLIT/NUMBER.parquet."""

SHUFFLED = 10_000
"""Rows that are shuffled at a time while they stream."""

WILDCHAT = "allenai/WildChat-1M"
LANGUAGES = {
    "English": "en",
    "Chinese": "zh",
    "Russian": "ru",
    "French": "fr",
    "Portuguese": "pt",
    "Spanish": "es",
}
OTHER = "other"


def benchmark_prompts(name: str, at_most: int, seed: int) -> list[Prompt]:
    """Return prompts of one benchmark, an equal part of each of its configs.

    Raises ConfigError where `datasets` is not installed, CalibrationError where the hub does not give rows.
    """
    benchmark = BENCHMARKS[name]
    share = -(-at_most // len(benchmark.configs))
    prompts = []
    for config in benchmark.configs:
        rows = stream(benchmark.path, config, benchmark.split, seed)
        texts = _texts(rows, partial(benchmark.text, config=config or ""), benchmark.path)
        origin = "/".join(filter(None, (benchmark.path, config)))
        prompts += [Prompt(text, benchmark.domain, f"{origin}:{n}") for n, text in islice(texts, share)]
    return prompts[:at_most]


def wildchat_prompts(quotas: Mapping[str, int], seed: int) -> dict[str, list[Prompt]]:
    """Return first messages of WildChat's users: quotas[language] of each, OTHER for all other languages.

    The stream ends once every quota is full.
    """
    found: dict[str, list[Prompt]] = {language: [] for language in quotas}
    missing = sum(quotas.values())
    for number, row in enumerate(stream(WILDCHAT, None, "train", seed)):
        if not missing:
            break
        language = LANGUAGES.get(row["language"], OTHER)
        text = str(row["conversation"][0]["content"])
        if text.strip() and len(found.get(language, ())) < quotas.get(language, 0):
            found[language].append(Prompt(text, language, f"{WILDCHAT}:{number}"))
            missing -= 1
    return found


def stream(path: str, config: str | None, split: str, seed: int) -> Iterator[Row]:
    """Rows of a dataset in a random order by seed. Errors as in `benchmark_prompts`."""
    load = _library().load_dataset
    try:
        try:
            rows = load(path, config, split=split, streaming=True)
        except RuntimeError:  # a dataset that is a script, which the library no longer runs
            files = f"{config or 'default'}/{split}/*.parquet"
            rows = load(path, data_files=files, revision=PARQUET, split="train", streaming=True)
        yield from rows.shuffle(seed=seed, buffer_size=SHUFFLED)
    except Exception as error:  # of datasets, huggingface_hub, pyarrow and HTTP libraries, none of them ours
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CalibrationError(
            f"the hub gives no rows of {path} ({reason}); check the network, or put the prompts into a "
            "folder of JSON lines and name it with --data"
        ) from error


def _texts(rows: Iterable[Row], text: Callable[[Row], str], path: str) -> Iterator[tuple[int, str]]:
    for number, row in enumerate(rows):
        try:
            yield number, text(row)
        except (KeyError, TypeError) as error:
            raise CalibrationError(
                f"rows of {path} have another form than expected ({error!r} is missing in {sorted(row)}); "
                "put the prompts into a folder of JSON lines and name it with --data"
            ) from error


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            'named benchmarks come from the hub through datasets: pip install ".[datasets]", '
            "or name a folder of JSON lines with --data"
        ) from None
    return datasets
