"""What the parts of ELDR say to each other: frozen values, imported by everything, importing nothing.

Shapes use L = num_moe_layers, E = num_experts, D = signature length (kept layers x E), K = decode workers.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint32]
"""Expert counts [L, E], logical expert ids: how many tokens each layer routed to each expert."""

Vector = npt.NDArray[np.float32]
"""A signature [D], unit length."""

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """The expert counts of one request's prompt, as an engine reported them.

    counts: uint32 [L, E]; sum = covered x L x top_k.
    tokens: prompt tokens of the request.
    covered: prompt tokens that are in `counts`; less than `tokens` when KV blocks came from elsewhere.
    """

    counts: Counts
    top_k: int
    tokens: int
    covered: int


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """A request at the hand-off: its prefill is done and it needs a decode worker.

    signature: [D], or None when there is none (the policy then goes by load).
    label: the domain that the client named, for static routing by label.
    prompt_tokens, max_tokens: None where unknown.
    """

    request_id: str
    signature: Vector | None = None
    label: str | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """The decode workers at one moment, as arrays in worker order. Policies must not change them.

    worker_ids: K names, unique.
    in_flight: int64 [K], requests from selection to last byte.
    in_flight_tokens: float64 [K], prompt tokens plus expected output tokens of these requests.
    available: bool [K], False while a worker is down or draining.
    centroids: float32 [K, D] unit rows, None without a profile; rows of workers without a centroid are zero.
    has_centroid: bool [K].
    """

    worker_ids: tuple[str, ...]
    in_flight: npt.NDArray[np.int64]
    in_flight_tokens: npt.NDArray[np.float64]
    available: npt.NDArray[np.bool_]
    centroids: Matrix | None
    has_centroid: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Decision:
    """Which decode worker a policy chose, and why.

    worker: index into the pool; worker_id: its name.
    similarity, best_similarity: of the chosen and of the most similar worker, as the policy compared them:
        cosine with its centroid, or what else the policy says; None where not compared.
    band_size: workers that the policy chose between.
    in_flight: of the chosen worker, before this request.
    fallback: why the policy's own rule was not used ("no_signature", "no_profile", ...), else None.
    similarities: float64 [K], cosine with each centroid, for the decision log; None where not compared.
    """

    worker: int
    worker_id: str
    policy: str
    in_flight: int
    band_size: int
    similarity: float | None = None
    best_similarity: float | None = None
    fallback: str | None = None
    similarities: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
