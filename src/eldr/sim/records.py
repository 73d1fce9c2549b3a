"""What became of the requests of a simulation, as columns, and its summary."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.metrics.records import Outcome, RequestRecord
from eldr.metrics.summary import Spread, spread
from eldr.sim.requests import Requests
from eldr.types import Decision

OUTCOMES: tuple[Outcome, ...] = ("ok", "refused", "broken")
OK, REFUSED, BROKEN = range(3)
NOBODY = -1

Floats = npt.NDArray[np.float64]


class Records:
    """N requests: times in seconds of the simulation (NaN where not reached), workers by number (-1: none).

    Columns as the fields of eldr.metrics.records.RequestRecord, which iterating gives; `outcome` is a number,
    see OUTCOMES, and `fallback` one of `reasons`, -1 for none. similarity, best_similarity: NaN for None.
    """

    def __init__(self, requests: Requests, policy: str) -> None:
        n = len(requests)
        self.requests, self.policy = requests, policy
        self.arrival_s = requests.arrival_s.copy()
        self.prefill_done_s, self.decided_s, self.first_token_s, self.finish_s = (
            np.full(n, np.nan) for _ in range(4)
        )
        self.prefill_worker, self.decode_worker, self.band_size, self.in_flight = (
            np.full(n, NOBODY, np.int32) for _ in range(4)
        )
        self.similarity, self.best_similarity = (np.full(n, np.nan, np.float32) for _ in range(2))
        self.cached_tokens = np.zeros(n, np.int32)
        self.attempts, self.outcome = np.zeros(n, np.int8), np.zeros(n, np.int8)
        self.fallback = np.full(n, NOBODY, np.int8)
        self.reasons: list[str] = []

    def __len__(self) -> int:
        return len(self.arrival_s)

    def decided(self, request: int, now_s: float, decision: Decision) -> None:
        """Note a decision, which may be a second one."""
        self.decided_s[request] = now_s
        self.decode_worker[request] = decision.worker
        self.band_size[request] = decision.band_size
        self.in_flight[request] = decision.in_flight
        self.attempts[request] += 1
        if decision.similarity is not None:
            self.similarity[request] = decision.similarity
        if decision.best_similarity is not None:
            self.best_similarity[request] = decision.best_similarity
        if decision.fallback is not None:
            self.fallback[request] = self._reason(decision.fallback)

    def _reason(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        ok: npt.NDArray[np.bool_] = self.outcome == OK
        return ok

    @property
    def ttft_s(self) -> Floats:
        """[N]: arrival to first token, NaN without one."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """[N]: (finish - first token) / (output tokens - 1), NaN for one token and for a broken stream."""
        gaps = np.where(self.ok, self.requests.output_tokens - 1, 0)
        out = np.full(len(self), np.nan)
        np.divide(self.finish_s - self.first_token_s, gaps, out=out, where=gaps > 0)
        return out

    def __iter__(self) -> Iterator[RequestRecord]:
        """The same as the router's records. Requests are named by number, workers p0, d0, ..."""
        return (self._record(request) for request in range(len(self)))

    def _record(self, i: int) -> RequestRecord:
        requests, fallback = self.requests, int(self.fallback[i])
        ok = bool(self.outcome[i] == OK)
        return RequestRecord(
            request_id=str(i),
            path="/v1/completions",
            stream=True,
            label=str(requests.kinds.labels[requests.kind[i]]) or None,
            started_at=float(self.arrival_s[i]),
            arrival_s=float(self.arrival_s[i]),
            prefill_done_s=_present(self.prefill_done_s[i]),
            decided_s=_present(self.decided_s[i]),
            first_token_s=_present(self.first_token_s[i]),
            finish_s=float(self.finish_s[i]),
            prompt_tokens=int(requests.prompt_tokens[i]),
            output_tokens=int(requests.output_tokens[i]) if ok else None,
            cached_tokens=int(self.cached_tokens[i]),
            prefill_worker=_name("p", self.prefill_worker[i]),
            decode_worker=_name("d", self.decode_worker[i]),
            policy=self.policy,
            similarity=_present(self.similarity[i]),
            best_similarity=_present(self.best_similarity[i]),
            band_size=None if self.band_size[i] < 0 else int(self.band_size[i]),
            in_flight=None if self.in_flight[i] < 0 else int(self.in_flight[i]),
            fallback=None if fallback < 0 else self.reasons[fallback],
            attempts=int(self.attempts[i]),
            status=502 if self.outcome[i] == REFUSED else 200,
            outcome=OUTCOMES[self.outcome[i]],
        )


@dataclass(frozen=True, slots=True, eq=False)
class WorkerSteps:
    """Decode steps of each worker: how many, and sums over them. tokens: of the batch; active: experts.

    steps, tokens: int64 [K]; active: float64 [K], mean over layers, summed over steps; busy_s: float64 [K].
    by_batch: batch size -> steps, and active experts summed over them, of all workers.
    """

    steps: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    active: Floats
    busy_s: Floats
    by_batch: dict[int, tuple[int, float]]

    @property
    def active_experts(self) -> float | None:
        """Mean distinct experts a step and layer, over all steps; None without steps."""
        return _ratio(self.active, self.steps)

    @property
    def mean_batch(self) -> float | None:
        """Mean requests a step."""
        return _ratio(self.tokens, self.steps)


@dataclass(frozen=True, slots=True)
class SimSummary:
    """A simulation in numbers, defined as in docs/metrics.md. Times over requests that ended ok.

    duration_s: first arrival to last finish. per_worker: requests decoded by each.
    """

    requests: int
    outcomes: dict[str, int]
    duration_s: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    active_experts: float | None
    mean_batch: float | None
    per_worker: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SimResult:
    """records: what became of each request; steps: what each decode worker did."""

    records: Records
    steps: WorkerSteps

    @property
    def summary(self) -> SimSummary:
        records, ok = self.records, self.records.ok
        duration_s = float(np.nanmax(records.finish_s) - records.arrival_s.min())
        tokens = int(records.requests.output_tokens[ok].sum())
        decoded = records.decode_worker[records.decode_worker >= 0]
        return SimSummary(
            requests=len(records),
            outcomes={name: int((records.outcome == k).sum()) for k, name in enumerate(OUTCOMES)},
            duration_s=duration_s,
            output_tokens_per_s=tokens / duration_s if duration_s else 0.0,
            requests_per_s=int(ok.sum()) / duration_s if duration_s else 0.0,
            ttft_s=_spread(records.ttft_s[ok]),
            tpot_s=_spread(records.tpot_s),
            active_experts=self.steps.active_experts,
            mean_batch=self.steps.mean_batch,
            per_worker=tuple(np.bincount(decoded, minlength=len(self.steps.steps)).tolist()),
        )


def _spread(values: Floats) -> Spread | None:
    return spread(values[~np.isnan(values)])


def _ratio(total: npt.NDArray[np.generic], steps: npt.NDArray[np.int64]) -> float | None:
    return float(total.sum()) / int(steps.sum()) if steps.sum() else None


def _present(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _name(role: str, worker: int) -> str | None:
    return None if worker < 0 else f"{role}{worker}"
