"""Small simulated clusters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.sim import Kinds, Rates, Requests, StepCost
from eldr.sim.cost import Attention, Moe, Prefill, Rest, Transfer


def cost(**parts: Any) -> StepCost:
    """A model of one layer and 8 experts. A step takes 1 s unless `parts` say otherwise."""
    given: dict[str, Any] = {
        "name": "test",
        "gpu": "none",
        "model": "none",
        "layers": 1,
        "experts": 8,
        "top_k": 2,
        "moe": Moe(fixed_us=1e6, active_us=0.0),
    }
    return StepCost(**(given | parts))


def seconds(
    *,
    fixed: float = 0.0,
    active: float = 0.0,
    sequence: float = 0.0,
    context: float = 0.0,
    prefill: float = 0.0,
    prefill_token: float = 0.0,
    transfer: float = 0.0,
) -> StepCost:
    """A cost in seconds a part."""
    return cost(
        moe=Moe(fixed_us=fixed * 1e6, active_us=active * 1e6),
        attention=Attention(context_us=context * 1e6),
        rest=Rest(token_us=sequence * 1e6),
        prefill=Prefill(fixed_us=prefill * 1e6, token_us=prefill_token * 1e6),
        transfer=Transfer(fixed_us=transfer * 1e6),
    )


def requests(
    arrival_s: Sequence[float] | npt.NDArray[np.float64],
    output_tokens: int | Sequence[int] | npt.NDArray[np.int64] = 1,
    prompt_tokens: int | Sequence[int] = 10,
    kind: int | Sequence[int] = 0,
    prefix: int | Sequence[int] = -1,
    prefix_tokens: int | Sequence[int] = 0,
    kinds: Kinds | None = None,
) -> Requests:
    """Requests; what is one number is the same for all. By default of one kind that uses two experts."""
    n = len(arrival_s)
    columns = (
        np.broadcast_to(np.asarray(c), n) for c in (prompt_tokens, output_tokens, kind, prefix, prefix_tokens)
    )
    return Requests(np.asarray(arrival_s, np.float64), *columns, kinds or pairs_of_experts(1))


def pairs_of_experts(kinds: int) -> Kinds:
    """Kind i uses experts 2i and 2i + 1 of 8 for certain, and its signature says so."""
    rates = np.zeros((kinds, 1, 8), np.float32)
    for kind in range(kinds):
        rates[kind, 0, 2 * kind : 2 * kind + 2] = 1
    signatures = rates.reshape(kinds, 8) / np.sqrt(np.float32(2))
    return Kinds(np.array([f"kind{k}" for k in range(kinds)]), Rates(rates), signatures)
