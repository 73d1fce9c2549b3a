"""How likely each expert was to the embedded model's routers, which vLLM does not report."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from eldr.counting import count_experts
from eldr.embedded.export import load_network
from eldr.signature.gates import gate_sums
from eldr.types import Counts


class GateReader:
    """Runs prompts through the model in a folder."""

    def __init__(self, model: Path) -> None:
        self._network = load_network(model)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def read(self, prompt: str) -> tuple[npt.NDArray[np.float32], Counts]:
        """Sums of all experts' probabilities over the prompt's tokens [L, E], and counts of its choices."""
        ids = torch.tensor([self._tokenizer.encode(prompt).ids])
        with torch.inference_mode():
            out = self._network(ids)
        logits, choices = (part.transpose(0, 1).numpy() for part in (out.router_logits, out.choices))
        return gate_sums(logits), count_experts(choices, logits.shape[2])
