"""Losses that keep the experts in use, the Muon optimizer, and the learning-rate schedule."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eldr.embedded.network import Network

MUON_LR = 6e-3
MUON_WEIGHT_DECAY = 0.1
ADAMW_LR = 4e-3
WARMUP_STEPS = 40
FINAL_LR_SHARE = 0.05
Z_WEIGHT = 1e-4
BALANCE_START, BALANCE_END, BALANCE_STEPS = 0.05, 0.01, 150

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of Jordan et al., five iterations


def expert_load(choices: Tensor, num_experts: int) -> Tensor:
    """Each expert's share of the (token, choice) pairs, [layers, experts], over all processes' batches."""
    layers = len(choices)
    rows = torch.arange(layers).view(-1, 1, 1) * num_experts + choices
    load = torch.bincount(rows.flatten(), minlength=layers * num_experts).view(layers, num_experts).float()
    if dist.is_initialized():
        dist.all_reduce(load)
    return load / load.sum(1, keepdim=True)


def balance_loss(router_logits: Tensor, load: Tensor) -> Tensor:
    """Mean over layers of E * sum_e load_e * mean probability_e; 1 when all experts are used alike.

    `load` comes from the whole mixed batch, so a domain may specialise as long as the mix stays balanced.
    """
    probabilities = router_logits.softmax(-1).mean(1)
    return load.shape[1] * (load * probabilities).sum(1).mean()


def z_loss(router_logits: Tensor) -> Tensor:
    """Mean squared log-partition of the router: keeps its logits small."""
    return router_logits.logsumexp(-1).square().mean()


def balance_weight(step: int) -> float:
    """High at first, when a few experts would otherwise take everything, then linearly down."""
    return BALANCE_START + (BALANCE_END - BALANCE_START) * min(step / BALANCE_STEPS, 1.0)


def learning_rate_share(step: int, progress: float) -> float:
    """Factor of the peak rate: warm-up by steps, then a cosine over `progress` (0..1)."""
    warm = min((step + 1) / WARMUP_STEPS, 1.0)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
    return warm * (FINAL_LR_SHARE + (1.0 - FINAL_LR_SHARE) * cosine)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Nearly the nearest orthogonal matrices of a stack [..., rows, columns], by Newton-Schulz."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if matrices.shape[-2] > matrices.shape[-1] else x


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Momentum whose update is orthogonalised, each expert's gate, up and down matrix on its own.

    A group's `parts` says how many matrices are stacked along the rows of each parameter (2 for gate and up).
    The update has the root mean square of an AdamW step (0.2 * sqrt(larger side)). Each process computes the
    updates of its share of the parameters; one all-reduce hands them to the others.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "parts": 1})

    def step(self) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter, update in zip(group["params"], self._updates(group), strict=True):
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    parameter.sub_(update, alpha=group["lr"])

    def _updates(self, group: dict[str, Any]) -> list[Tensor]:
        params, momentum = group["params"], group["momentum"]
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        flat = torch.zeros(sum(p.numel() for p in params))
        updates = [
            part.view_as(p) for part, p in zip(flat.split([p.numel() for p in params]), params, strict=True)
        ]
        for index, (parameter, update) in enumerate(zip(params, updates, strict=True)):
            buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            buffer.lerp_(parameter.grad, 1.0 - momentum)
            if index % world == rank:
                parts = parameter.grad.lerp(buffer, momentum).chunk(group["parts"], -2)
                update.copy_(torch.cat([_scaled(orthogonalize(part)) for part in parts], -2))
        if world > 1:
            dist.all_reduce(flat)
        return updates


def _scaled(update: Tensor) -> Tensor:
    return update * (0.2 * max(update.shape[-2:]) ** 0.5)


def make_optimizers(network: Network) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices of attention and experts; AdamW for embedding, norms and routers."""
    stacked, matrices, others = [], [], []
    for name, parameter in network.named_parameters():
        if name.endswith("gate_up_proj"):
            stacked.append(parameter)
        elif parameter.dim() >= 2 and "embed" not in name and ".gate." not in name:
            matrices.append(parameter)
        else:
            others.append(parameter)
    matrices.sort(key=torch.numel, reverse=True)  # equal neighbours: the processes get equal shares
    muon = Muon([{"params": stacked, "parts": 2}, {"params": matrices}], MUON_LR, MUON_WEIGHT_DECAY)
    return muon, torch.optim.AdamW(others, ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
