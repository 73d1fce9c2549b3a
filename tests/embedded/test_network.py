"""The network against plain references: a loop over experts, a forward without cache, and Hugging Face."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from torch.nn import functional as F  # noqa: E402

from eldr.embedded.export import load_network  # noqa: E402
from eldr.embedded.network import Experts, MoeBlock, Permute  # noqa: E402
from embedded.small import SHAPE, small_model, small_network  # noqa: E402


def loop_over_experts(
    experts: Experts, x: torch.Tensor, choices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """One token and choice after the other, as the equation says."""
    rows = []
    for token, chosen, shares in zip(x, choices, weights, strict=True):
        parts = []
        for expert, share in zip(chosen.tolist(), shares, strict=True):
            gate, up = (experts.gate_up_proj[expert] @ token).chunk(2)
            parts.append(share * (experts.down_proj[expert] @ (F.silu(gate) * up)))
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


def test_grouped_experts_equal_a_loop_with_gradients() -> None:
    torch.manual_seed(1)
    experts = Experts(SHAPE)
    x = torch.randn(20, SHAPE.hidden_size, requires_grad=True)
    choices = torch.stack(
        [torch.randperm(SHAPE.num_experts - 1)[: SHAPE.top_k] for _ in range(20)]
    )  # one is idle
    weights = torch.rand(20, SHAPE.top_k, requires_grad=True)
    target = torch.randn(20, SHAPE.hidden_size)
    inputs = (x, weights, experts.gate_up_proj, experts.down_proj)
    results = []
    for run in (experts, lambda *args: loop_over_experts(experts, *args)):
        out = run(x, choices, weights)
        results.append((out, *torch.autograd.grad((out * target).sum(), inputs)))
    for grouped, looped in zip(*results, strict=True):
        torch.testing.assert_close(grouped, looped, rtol=1e-4, atol=1e-5)


def test_permute_gradient_is_the_inverse_permutation() -> None:
    order = torch.randperm(6)
    rows = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: Permute.apply(r, order, order.argsort()), (rows,))


def test_router_weights_sum_to_one_and_choices_are_distinct() -> None:
    block = MoeBlock(SHAPE)
    _, router_logits, choices = block(torch.randn(2, 5, SHAPE.hidden_size))
    assert router_logits.shape == (10, SHAPE.num_experts)
    assert all(len(set(row)) == SHAPE.top_k for row in choices.tolist())
    assert torch.equal(choices[:, 0], router_logits.argmax(-1))


def test_cache_gives_the_same_logits_and_choices() -> None:
    network, ids = small_network(), torch.randint(0, SHAPE.vocab_size, (3, 12))
    with torch.inference_mode():
        whole = network(ids)
        caches: list[list[object]] = [[] for _ in network.layers]
        parts = [network(ids[:, :8], caches)] + [network(ids[:, i : i + 1], caches) for i in range(8, 12)]
    torch.testing.assert_close(
        torch.cat([part.logits for part in parts], 1), whole.logits, rtol=1e-4, atol=1e-5
    )
    choices = torch.cat([part.choices.view(SHAPE.num_layers, 3, -1, SHAPE.top_k) for part in parts], 2)
    assert torch.equal(choices, whole.choices.view(SHAPE.num_layers, 3, -1, SHAPE.top_k))


def test_export_and_back_is_exact(tmp_path: Path) -> None:
    loaded = load_network(small_model(tmp_path))
    for (name, ours), (_, theirs) in zip(
        small_network().named_parameters(), loaded.named_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_hugging_face_gives_the_same_logits_and_router_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = small_model(tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.randint(0, SHAPE.vocab_size, (2, 20))
    with torch.inference_mode():
        ours, reference = load_network(folder)(ids), theirs(ids, output_router_logits=True)
    torch.testing.assert_close(ours.logits, reference.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.router_logits, torch.stack(reference.router_logits), rtol=1e-4, atol=1e-4)
