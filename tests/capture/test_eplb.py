"""vLLM's EPLB: signatures do not change when it moves experts, and the simulator places them as it does."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eldr.sim import balanced
from support.later import Later

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

torch = Later("torch")
eplb_state = Later("vllm.distributed.eplb.eplb_state")
default = Later("vllm.distributed.eplb.policy.default")
base_router = Later("vllm.model_executor.layers.fused_moe.router.base_router")


def fixed_router(**options: Any) -> Any:
    """A router that always chooses the same logical experts."""

    class FixedRouter(base_router.BaseRouter):
        routing_method_type = None

        def _compute_routing(self, hidden_states, router_logits, indices_type, *, input_ids=None):  # noqa: ARG002
            return torch.ones(2, 2), torch.tensor([[0, 3], [1, 3]])

    return FixedRouter(**options)


@pytest.mark.parametrize("placed", [[0, 1, 2, 3], [3, 2, 1, 0], [5, 4, 7, 6]])
def test_the_hook_runs_before_experts_are_mapped_to_physical_ones(
    placed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM maps on GPUs only, so the map itself stands in here; where it is applied is vLLM's."""
    monkeypatch.setattr(
        "vllm.model_executor.layers.fused_moe.router.base_router.eplb_map_to_physical_and_record",
        lambda topk_ids, logical_to_physical_map, **_: logical_to_physical_map[topk_ids, 0],
    )
    nothing = torch.zeros(4, dtype=torch.int32)
    state = eplb_state.EplbLayerState(
        expert_load_view=nothing,
        logical_to_physical_map=torch.tensor(placed)[:, None],
        logical_replica_count=nothing + 1,
        should_record_tensor=nothing,
        num_unpadded_tokens_tensors=[nothing],
    )
    router = fixed_router(top_k=2, global_num_experts=4, eplb_state=state)
    seen = []
    router.set_capture_fn(lambda ids: seen.append(ids.tolist()))
    _, physical = router.select_experts(SimpleNamespace(shape=(2, 8)), torch.zeros(2, 4))
    assert seen == [[[0, 3], [1, 3]]]
    assert physical.tolist() == [[placed[0], placed[3]], [placed[1], placed[3]]]


@pytest.mark.parametrize(
    ("experts", "ranks", "redundant"), [(128, 8, 16), (128, 4, 0), (32, 4, 4), (64, 8, 8)]
)
def test_the_simulator_places_experts_slot_by_slot_as_vllm(experts: int, ranks: int, redundant: int) -> None:
    load = np.random.default_rng(0).exponential(size=(12, experts)).astype(np.float32)
    theirs = default.DefaultEplbPolicy.rebalance_experts(torch.tensor(load), experts + redundant, 1, 1, ranks)
    np.testing.assert_array_equal(balanced(load, ranks, redundant).slots, theirs.numpy())
