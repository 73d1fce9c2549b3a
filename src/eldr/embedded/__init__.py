"""The small MoE model that the demo and the tests run, prompts for it, and how it was trained.

Importing it needs neither torch nor Transformers; `train`, `export`, `measure` and `make_prompts` do.
"""

from importlib.resources import files
from pathlib import Path

from eldr.embedded.wide import wide_model
from eldr.errors import ConfigError

__all__ = ["model_path", "prompts_path", "wide_model"]


def model_path() -> Path:
    """The shipped model: a Hugging Face folder (Qwen3-MoE, 4 layers of 64 experts, top-4, bfloat16)."""
    return _shipped("model", "config.json")


def prompts_path() -> Path:
    """The shipped prompts: a folder of `<domain>.jsonl`, each line `{"prompt": str, "domain": str}`."""
    return _shipped("prompts", "code.jsonl")


def _shipped(folder: str, expected: str) -> Path:
    path = Path(str(files(__name__) / folder))
    if not (path / expected).is_file():
        raise ConfigError(
            f"{path / expected} is missing; install eldr again, unpacked and with its package data"
        )
    return path
