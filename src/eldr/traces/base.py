"""The one form of expert choices that every source gives and that the simulator and the figures take."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from eldr.counting import count_experts
from eldr.errors import CalibrationError
from eldr.profile.dataset import CalibrationSet

Evidence = Literal["engine", "trace", "model"]
"""engine: a real vLLM run; trace: recorded from a real model; model: synthetic, its statistics stated."""

Rows = npt.NDArray[Any] | slice


@dataclass(frozen=True, slots=True, eq=False)
class DecodeIds:
    """The experts that each decoded token chose.

    ids: unsigned [T, L, k], the tokens of all requests one after another; which of the k comes first means
    nothing. starts: int64 [N + 1], request r has the tokens starts[r] to starts[r + 1].
    """

    ids: npt.NDArray[np.unsignedinteger[Any]]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[npt.NDArray[np.unsignedinteger[Any]]]:
        return (self.of(row) for row in range(len(self)))

    def of(self, row: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """The choices [tokens, L, k] of one request."""
        return self.ids[self.starts[row] : self.starts[row + 1]]

    def tokens(self) -> npt.NDArray[np.int64]:
        """How many tokens of each request were recorded, [N]."""
        return np.diff(self.starts)

    def rows(self, index: Rows) -> "DecodeIds":
        """The requests that a numpy index or mask selects, in its order."""
        parts = [self.of(int(row)) for row in np.arange(len(self))[index]]
        return DecodeIds.join(parts) if parts else DecodeIds(self.ids[:0], np.zeros(1, np.int64))

    @classmethod
    def join(cls, parts: list[npt.NDArray[np.unsignedinteger[Any]]]) -> Self:
        """One object from the choices [tokens, L, k] of each request."""
        starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return cls(np.concatenate(parts), starts)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTraces:
    """Expert choices of N labelled requests of one model, in the L MoE layers of it that are kept.

    model: its name; source: one sentence on where the choices come from; evidence: see `Evidence`.
    num_layers: MoE layers of the model; layers: int64 [L], which of them these arrays hold, ascending.
    label: str [N]; prompt_tokens: int32 [N], the tokens that `prefill` counts.
    prefill: unsigned counts [N, L, E]; each layer of a row sums to prompt_tokens x top_k.
    ids: choices of each decoded token, or None. rates: float [N, L, E], the probability that one decoded
    token of the request activates the expert (sums to top_k a layer), or None. One of the two is there.
    """

    model: str
    source: str
    evidence: Evidence
    top_k: int
    num_layers: int
    layers: npt.NDArray[np.int64]
    label: npt.NDArray[np.str_]
    prompt_tokens: npt.NDArray[np.int32]
    prefill: npt.NDArray[np.unsignedinteger[Any]]
    ids: DecodeIds | None = None
    rates: npt.NDArray[np.floating[Any]] | None = None

    def __post_init__(self) -> None:
        """Raise CalibrationError, naming the field, where the arrays contradict each other."""
        shape = self.prefill.shape
        per_request = {"label": self.label, "prompt_tokens": self.prompt_tokens, "ids": self.ids}
        wrong = [name for name, part in per_request.items() if part is not None and len(part) != shape[0]]
        if self.rates is not None and self.rates.shape != shape:
            wrong.append("rates")
        if self.ids is not None and self.ids.ids.shape[1:] != (shape[1], self.top_k):
            wrong.append("ids")
        if len(self.layers) != shape[1]:
            wrong.append("layers")
        if wrong:
            raise CalibrationError(
                f"traces of {self.model}: {wrong[0]!r} does not fit prefill counts {list(shape)}"
            )
        if self.ids is None and self.rates is None:
            raise CalibrationError(f"traces of {self.model} have neither decode ids nor rates")

    def __len__(self) -> int:
        return len(self.prefill)

    @property
    def num_experts(self) -> int:
        return int(self.prefill.shape[2])

    def counts(self, row: int) -> npt.NDArray[np.uint32]:
        """Prefill counts [L, E] of one request, as the wire carries them."""
        counts: npt.NDArray[np.uint32] = self.prefill[row].astype(np.uint32)
        return counts

    def decode_rates(self, index: Rows = slice(None)) -> npt.NDArray[np.float32]:
        """[n, L, E]: the probability that one decoded token of each request activates an expert.

        Given, or the share of the request's recorded tokens that did.
        """
        if self.rates is not None:
            return self.rates[index].astype(np.float32, copy=False)
        assert self.ids is not None
        parts = (self.ids.of(int(row)) for row in np.arange(len(self))[index])
        return np.stack([_rates(ids, self.num_experts) for ids in parts])

    def rows(self, index: Rows) -> Self:
        """The requests that a numpy index or mask selects, in its order."""
        return replace(
            self,
            label=self.label[index],
            prompt_tokens=self.prompt_tokens[index],
            prefill=self.prefill[index],
            ids=None if self.ids is None else self.ids.rows(index),
            rates=None if self.rates is None else self.rates[index],
        )

    def keep_layers(self, places: npt.NDArray[np.integer[Any]]) -> Self:
        """Only the layers at these places of the arrays; a figure made from them has to say so."""
        ids = None if self.ids is None else DecodeIds(self.ids.ids[:, places], self.ids.starts)
        rates = None if self.rates is None else self.rates[:, places]
        return replace(
            self, layers=self.layers[places], prefill=self.prefill[:, places], ids=ids, rates=rates
        )

    def calibration_set(self, *, output_tokens: int = 64, seed: int = 0) -> CalibrationSet:
        """The same requests as `eldr fit` takes them.

        Decode counts are those of the recorded ids; where there are rates only, `output_tokens` tokens are
        drawn from them.
        """
        if self.ids is not None:
            decode = np.stack([count_experts(ids, self.num_experts) for ids in self.ids])
            tokens = self.ids.tokens().astype(np.int32)
        else:
            decode = draw_counts(self.decode_rates(), output_tokens, self.top_k, np.random.default_rng(seed))
            tokens = np.full(len(self), output_tokens, np.int32)
        return CalibrationSet(
            prefill_counts=self.prefill.astype(np.uint32),
            decode_counts=decode,
            label=self.label,
            prompt_tokens=self.prompt_tokens,
            output_tokens=tokens,
            model=self.model,
            top_k=self.top_k,
        )


def draw_counts(
    rates: npt.NDArray[np.floating[Any]],
    tokens: npt.NDArray[np.integer[Any]] | int,
    top_k: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.uint32]:
    """Counts [N, L, E] of `tokens` tokens ([N], or one number for all), drawn from rates that sum to top_k.

    Multinomial: each layer sums to tokens x top_k exactly, while two of a token's k choices may coincide.
    """
    shares = rates.astype(np.float64)
    shares /= shares.sum(axis=2, keepdims=True)
    choices = np.broadcast_to(np.asarray(tokens), len(rates)).astype(np.int64) * top_k
    return rng.multinomial(choices[:, None], shares).astype(np.uint32)


def _rates(ids: npt.NDArray[np.unsignedinteger[Any]], num_experts: int) -> npt.NDArray[np.float32]:
    return (count_experts(ids, num_experts) / max(len(ids), 1)).astype(np.float32)
