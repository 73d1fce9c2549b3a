"""One process of a training run: its network, its optimizers and its half of every batch."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from eldr.embedded import data as text
from eldr.embedded.network import Network, Shape
from eldr.embedded.optim import (
    Z_WEIGHT,
    balance_loss,
    balance_weight,
    expert_load,
    learning_rate_share,
    make_optimizers,
    z_loss,
)
from eldr.files import replacing

PROCESSES = 2
SEQUENCES = 24  # a step, over all processes
SEQUENCE_TOKENS = 256
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Run:
    """What a training run was asked to do, the same for all its processes."""

    out: Path
    steps: int
    minutes: float
    rendezvous: str  # a file:// address where the processes find each other
    shape: Shape

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"


class Trainer:
    """Trains by `train_step` until `progress` is 1; starts from the run's checkpoint where there is one."""

    def __init__(self, rank: int, run: Run) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=run.rendezvous, rank=rank, world_size=PROCESSES)
        torch.manual_seed(0)
        self.rank, self.run = rank, run
        self.network = Network(run.shape)
        self.optimizers = make_optimizers(self.network)
        self.peaks = [group["lr"] for opt in self.optimizers for group in opt.param_groups]
        streams = [np.load(run.out / f"{domain}.train.npy") for domain in text.DOMAINS]
        self.batches = text.MixedBatches(streams, SEQUENCE_TOKENS, SEQUENCES)
        self.step, self.spent_s = 0, 0.0
        self.gradient = self._flat_gradient()
        self._resume()

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0..1, by steps or by wall time, whichever is further on."""
        return max(self.step / self.run.steps, self.spent_s / (60.0 * self.run.minutes))

    def train_step(self) -> dict[str, float]:
        """One step on one mixed batch; what the log shows of it."""
        began = time.monotonic()
        share = self._set_learning_rate()
        loss, balance, load = self._backward()
        self.gradient[-2:] = torch.tensor([loss, balance])
        dist.all_reduce(self.gradient)
        self.gradient /= PROCESSES
        loss, balance = self.gradient[-2:].tolist()
        norm = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP_NORM))
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.spent_s += self._agreed_elapsed_s(began)
        peak_load = float(load.max()) * load.shape[1]
        return {"loss": loss, "balance": balance, "norm": norm, "lr_share": share, "peak_load": peak_load}

    def save(self) -> None:
        """Write the checkpoint that a later process resumes from."""
        state = {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "spent_s": self.spent_s,
        }
        with replacing(self.run.checkpoint) as file:
            torch.save(state, file)

    def _resume(self) -> None:
        if self.run.checkpoint.exists():
            state = torch.load(self.run.checkpoint, weights_only=True)
            self.network.load_state_dict(state["network"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.step, self.spent_s = state["step"], state["spent_s"]

    def _flat_gradient(self) -> Tensor:
        """One buffer that all gradients are views of (one all-reduce), with two places for the losses."""
        params = list(self.network.parameters())
        flat = torch.zeros(sum(p.numel() for p in params) + 2)
        start = 0
        for parameter in params:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return flat

    def _set_learning_rate(self) -> float:
        share = learning_rate_share(self.step, self.progress)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self.peaks, strict=True):
            group["lr"] = peak * share
        return share

    def _backward(self) -> tuple[float, float, Tensor]:
        """Gradients of this process's half of the batch: language-model loss, balance loss, expert load."""
        ids = torch.from_numpy(self.batches.batch(self.step)[self.rank :: PROCESSES])
        self.gradient.zero_()
        out = self.network(ids[:, :-1])
        loss = F.cross_entropy(out.logits.flatten(0, 1), ids[:, 1:].flatten())
        load = expert_load(out.choices, self.run.shape.num_experts)
        balance = balance_loss(out.router_logits, load)
        total = loss + balance_weight(self.step) * balance + Z_WEIGHT * z_loss(out.router_logits)
        total.backward()
        return float(loss.detach()), float(balance.detach()), load

    def _agreed_elapsed_s(self, began: float) -> float:
        """Process 0's time for all: were they to differ, the processes would stop at different steps."""
        elapsed = torch.tensor([time.monotonic() - began], dtype=torch.float64)
        dist.broadcast(elapsed, 0)
        return float(elapsed)
