import pytest

from eldr.bench.scrape import Steps, parse_steps
from eldr.errors import UpstreamError

PAGE = """# HELP eldr_active_experts Distinct experts.
# TYPE eldr_active_experts histogram
eldr_active_experts_bucket{engine="0",layer="0",le="8.0",model_name="m"} 2.0
eldr_active_experts_bucket{engine="0",layer="0",le="+Inf",model_name="m"} 3.0
eldr_active_experts_count{engine="0",layer="0",model_name="m"} 3.0
eldr_active_experts_sum{engine="0",layer="0",model_name="m"} 21.0
eldr_active_experts_bucket{engine="0",layer="1",le="+Inf",model_name="m"} 3.0
eldr_active_experts_count{engine="0",layer="1",model_name="m"} 3.0
eldr_active_experts_sum{engine="0",layer="1",model_name="m"} 27.0
# TYPE eldr_steps counter
eldr_steps_total{engine="0",kind="decode",model_name="m"} 3.0
eldr_steps_total{engine="0",kind="mixed",model_name="m"} 1.0
eldr_steps_total{engine="0",kind="prefill",model_name="m"} 1.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 20.0
"""


def test_counters_are_added_up_over_layers() -> None:
    steps = parse_steps(PAGE)
    assert steps == Steps(active_sum=48.0, active_count=6.0, decode_steps=3.0, other_steps=2.0, tokens=20.0)
    assert steps.active_experts == 8.0
    assert steps.mean_batch == 4.0
    assert steps - steps == Steps()
    assert (steps + steps).active_sum == 96.0


def test_an_engine_without_the_plugin_is_named() -> None:
    with pytest.raises(UpstreamError, match="eldr_active_experts"):
        _ = parse_steps("").active_experts
