"""The optimizer, the losses that keep experts in use, and the schedule."""

import pytest

torch = pytest.importorskip("torch")

from eldr.embedded.network import Network  # noqa: E402
from eldr.embedded.optim import (  # noqa: E402
    Muon,
    balance_loss,
    balance_weight,
    expert_load,
    learning_rate_share,
    make_optimizers,
    orthogonalize,
    z_loss,
)
from embedded.small import SHAPE, small_network  # noqa: E402


@pytest.mark.parametrize("size", [(8, 32), (32, 8), (16, 16)])
def test_orthogonalize_makes_singular_values_about_one(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(5, *size)))
    assert values.min() > 0.3  # five iterations: about one, not one
    assert values.max() < 1.3


def test_orthogonalize_treats_a_stack_as_its_matrices() -> None:
    stack = torch.randn(3, 8, 16)
    torch.testing.assert_close(orthogonalize(stack)[1], orthogonalize(stack[1]), rtol=1e-4, atol=1e-5)


def test_muon_orthogonalises_gate_and_up_apart() -> None:
    torch.manual_seed(0)
    gate_up = torch.nn.Parameter(torch.zeros(2, 16, 16))
    gate_up.grad = torch.randn(2, 16, 16)
    gate_up.grad[:, 8:] *= 1000.0  # a large gradient of up must not drown that of gate
    Muon([{"params": [gate_up], "parts": 2}], lr=1.0, weight_decay=0.0).step()
    scale = 0.2 * 16**0.5
    for half in gate_up.detach().chunk(2, 1):
        values = torch.linalg.svdvals(half / scale)
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_every_parameter_has_exactly_one_optimizer() -> None:
    network = Network(SHAPE)
    muon, adamw = make_optimizers(network)
    owned = [p for opt in (muon, adamw) for group in opt.param_groups for p in group["params"]]
    assert len(owned) == len(list(network.parameters()))
    assert {id(p) for p in owned} == {id(p) for p in network.parameters()}
    routers = {id(layer.mlp.gate.weight) for layer in network.layers}
    assert routers <= {id(p) for group in adamw.param_groups for p in group["params"]}


def test_a_few_steps_learn_a_repeated_text() -> None:
    network = small_network()
    optimizers = make_optimizers(network)
    ids = torch.arange(64).view(2, 32)
    losses = []
    for _ in range(60):
        logits = network(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_expert_load_counts_choices() -> None:
    choices = torch.tensor([[[0, 1], [0, 2]], [[3, 2], [3, 2]]])
    assert expert_load(choices, 4).tolist() == [[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5]]


def test_balance_loss_is_one_when_even_and_grows_when_not() -> None:
    even = torch.full((1, 4), 0.25)
    assert float(balance_loss(torch.zeros(1, 3, 4), even)) == pytest.approx(1.0)
    skewed = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    logits = torch.zeros(1, 3, 4)
    logits[..., 0] = 10.0
    assert float(balance_loss(logits, skewed)) == pytest.approx(4.0, abs=0.01)


def test_balance_gradient_pushes_away_from_the_busy_expert() -> None:
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    balance_loss(logits, torch.tensor([[0.7, 0.1, 0.1, 0.1]])).backward()
    assert (logits.grad[..., 0] > 0).all()
    assert (logits.grad[..., 1:] < 0).all()


def test_z_loss_is_the_squared_log_partition() -> None:
    assert float(z_loss(torch.zeros(2, 3, 8))) == pytest.approx(float(torch.tensor(8.0).log() ** 2))


def test_schedules() -> None:
    assert balance_weight(0) == pytest.approx(0.05)
    assert balance_weight(75) == pytest.approx(0.03)
    assert balance_weight(150) == balance_weight(10_000) == pytest.approx(0.01)
    assert learning_rate_share(0, 0.0) == pytest.approx(1 / 40)
    assert learning_rate_share(39, 0.0) == pytest.approx(1.0)
    assert learning_rate_share(500, 0.5) == pytest.approx(0.525)
    assert learning_rate_share(500, 1.0) == learning_rate_share(500, 1.7) == pytest.approx(0.05)
