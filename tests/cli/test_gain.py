"""From active experts to TPOT and a sentence."""

import pytest

from eldr.cli.gain import Hardware, find_hardware, step_gains, verdict
from eldr.errors import ConfigError
from eldr.profile.active import ActiveExperts
from eldr.profile.artifact import ProfileInfo
from eldr.sim.cost import Attention, Moe, StepCost
from eldr.sim.costs import named_cost
from support.profiles import domain_profile

COST = StepCost(
    name="c", gpu="g", model="m", layers=2, experts=100, top_k=4,
    moe=Moe(fixed_us=10, active_us=5), attention=Attention(context_us=0.5),
)  # fmt: skip


def test_a_step_by_hand() -> None:
    (gain,) = step_gains(Hardware(COST.lent_to(50), own=False), [ActiveExperts(8, 20.0, 15.0)], 100)
    assert gain.mixed_ms == pytest.approx((2 * (10 + 5 * 40) + 0.5 * 800) / 1000)
    assert gain.grouped_ms == pytest.approx((2 * (10 + 5 * 30) + 0.5 * 800) / 1000)
    assert gain.change == pytest.approx(720 / 820 - 1)
    assert gain.moe_share == pytest.approx(400 / 820)


def test_what_was_not_measured_is_left_out() -> None:
    rows = [ActiveExperts(8, 20.0, None), ActiveExperts(16, None, None), ActiveExperts(32, 30.0, 20.0)]
    assert [gain.batch for gain in step_gains(Hardware(COST, own=True), rows, 0)] == [32]


@pytest.mark.parametrize(
    ("mixed", "grouped", "context", "said"),
    [
        (60.0, 45.0, 0, "Worth it: TPOT -24.2% to -24.2% over these batches; at batch 32, batches of one "
         "cluster read 25.0% fewer experts than mixed ones, and reading experts is 97% of a step."),
        (60.0, 45.0, 20_000, "Not worth it: TPOT -0.0% at best (batch 32), although batches of one cluster"),
        (60.0, 59.5, 0, "Not worth it: TPOT -0.8% at best (batch 32); the clusters hardly differ"),
        (99.0, 98.0, 0, "even a mixed batch uses 99% of the experts"),
    ],
)  # fmt: skip
def test_the_verdict_says_why(mixed: float, grouped: float, context: float, said: str) -> None:
    active = [ActiveExperts(32, mixed, grouped)]
    gains = step_gains(Hardware(COST, own=True), active, context)
    assert said in verdict(gains, active, 100)


def info(layers: int, experts: int, top_k: int) -> ProfileInfo:
    return domain_profile(layers=layers, experts=experts, top_k=top_k).info


def test_the_models_own_cost_is_found_by_its_shape() -> None:
    own = find_hardware("h200", info(48, 128, 8))
    assert (own.own, own.cost) == (True, named_cost("h200-qwen3-30b-a3b"))
    assert find_hardware("h200", info(36, 128, 4)).cost.name == "h200-gpt-oss-120b"
    borrowed = find_hardware("h200", info(4, 64, 4))
    assert (borrowed.own, borrowed.cost.name) == (False, "h200-qwen3-30b-a3b")
    assert borrowed.cost.step_s(32, 8, 100) == own.cost.step_s(64, 8, 100)
    assert find_hardware("h100-gpt-oss-120b", info(4, 64, 4)).cost.name == "h100-gpt-oss-120b"
    with pytest.raises(ConfigError, match="no step cost for --gpu 'h20'; choose from a100, h100, h200"):
        find_hardware("h20", info(48, 128, 8))
