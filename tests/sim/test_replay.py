"""A router's log, replayed."""

import msgspec
import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.metrics.decisions import Decided, DecisionRecord, explain
from eldr.metrics.records import RequestRecord
from eldr.policy import create_policy
from eldr.sim.replay import replay_decisions
from eldr.types import RoutingRequest
from support.pools import random_view, unit_rows

END = RequestRecord(
    request_id="r",
    path="/",
    started_at=0.0,
    arrival_s=0.0,
    finish_s=9.0,
    outcome="ok",
    prompt_tokens=5,
    output_tokens=7,
)


def log_of(policy: str, seed: int, n: int = 200, **options: object) -> list[DecisionRecord]:
    """What a router that asks the policy would have logged, over random views."""
    rng = np.random.default_rng(3)
    chooser = create_policy(policy, rng=np.random.default_rng(seed), **options)
    records = []
    for number in range(n):
        request = RoutingRequest(str(number), unit_rows(rng.random(12)))
        view = random_view(rng, workers=6)
        decision = chooser.select(request, view)
        end = msgspec.structs.replace(END, request_id=str(number))
        decided = Decided(float(number), request, decision, view, decision.fallback)
        line = msgspec.json.encode(explain(end, 1, decided, last=True))
        records.append(msgspec.json.decode(line, type=DecisionRecord))
    return records


@pytest.mark.parametrize("policy", ["round_robin", "random", "jsq", "p2c", "locality_band"])
def test_a_log_in_any_order_gives_the_same_decisions(policy: str) -> None:
    log = log_of(policy, seed=4)
    again = replay_decisions(reversed(log), seed=4)
    assert (again.policy, again.decisions, again.different) == (policy, 200, ())
    assert again.same + again.within_rounding == 200
    assert again.within_rounding <= 2


def test_another_seed_tau_or_policy_decides_otherwise() -> None:
    assert len(replay_decisions(log_of("p2c", seed=4), seed=5).different) > 20
    log = log_of("locality_band", seed=0, tau=0.1)
    other = replay_decisions(log, options={"tau": 0.0})
    assert 0 < len(other.different) < 200
    assert other.different[0].logged != other.different[0].replayed
    assert len(replay_decisions(log, "round_robin").different) > 20


def test_a_similarity_on_the_edge_of_the_band_may_be_rounded_either_way() -> None:
    log = log_of("locality_band", seed=0, n=1)
    cosines = [0.9, 0.79999, 0.1, 0.1, 0.1, 0.1]
    edge = msgspec.structs.replace(
        log[0],
        similarities=cosines,
        available=[True] * 6,
        in_flight=[5, 0, 0, 0, 0, 0],
        decode_worker="w1",
    )
    assert replay_decisions([edge]).within_rounding == 1
    outside = msgspec.structs.replace(edge, similarities=[0.9, 0.7999, *cosines[2:]])
    assert len(replay_decisions([outside]).different) == 1


def test_a_log_that_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ConfigError, match="no decisions"):
        replay_decisions([])
    with pytest.raises(ConfigError, match="jsq, p2c"):
        replay_decisions([*log_of("jsq", 0, 1), *log_of("p2c", 0, 1)])
    with pytest.raises(ConfigError, match="signatures"):
        replay_decisions(log_of("jsq", 0, 1), "soft_locality")
