import json
from pathlib import Path

import msgspec
import pytest

from eldr.errors import ConfigError
from eldr.sim import load_cost, named_cost
from eldr.sim.cost import Attention, Moe, Prefill, Rest, Transfer

from .small import cost


def test_a_step_is_the_sum_of_its_parts() -> None:
    whole = cost(
        layers=3,
        moe=Moe(fixed_us=10.0, active_us=2.0, token_us=0.5),
        attention=Attention(fixed_us=7.0, sequence_us=0.25, context_us=0.01),
        rest=Rest(fixed_us=5.0, token_us=1.5),
        prefill=Prefill(fixed_us=100.0, token_us=2.0, pair_us=0.1),
        transfer=Transfer(fixed_us=9.0, token_us=3.0),
    )
    step_us = 3 * (10 + 2 * 6 + 0.5 * 4) + (7 + 0.25 * 4 + 0.01 * 800) + (5 + 1.5 * 4)
    assert whole.step_s(6.0, 4, 800) == pytest.approx(step_us * 1e-6)
    assert whole.prefill_s(50, 1275) == pytest.approx((100 + 100 + 127.5) * 1e-6)
    assert whole.transfer_s(20) == pytest.approx(69e-6)


def test_a_file_gives_the_cost_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_bytes(msgspec.json.encode(named_cost("h100-gpt-oss-120b")))
    assert load_cost(path) == named_cost("h100-gpt-oss-120b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe": {"fixed_us": -1, "active_us": 1}}, "moe.fixed_us is -1"),
        ({"moe": {"fixed_us": 0, "active_us": 0}}, "takes no time"),
        ({"layers": 0}, "at least 1"),
        ({"moe": {"fixed_us": 1}}, "active_us"),
        ({"flavour": 1}, "flavour"),
        ({"top_k": "many"}, "top_k"),
    ],
)
def test_a_bad_file_is_told(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(msgspec.to_builtins(cost()) | change))
    with pytest.raises(ConfigError, match=message):
        load_cost(path)
    path.write_bytes(b"\x00{")
    with pytest.raises(ConfigError, match="no cost file"):
        load_cost(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_cost(tmp_path / "absent.json")
