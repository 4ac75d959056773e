"""Models for tests of fully_shard, and the same trained whole: by one rank, on the whole batch."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import shardwise as sw
from shardwise.testing import run_ranks


class Block(nn.Module):
    """Weights and biases of any width, a scalar, and a residual."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return x + self.scale * self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 6, hidden: int = 10, n_blocks: int = 3, checkpointed: str = "") -> None:
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=False)
        self.checkpointed = checkpointed

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            reentrant = self.checkpointed == "reentrant"
            x = checkpoint(block, x, use_reentrant=reentrant) if self.checkpointed else block(x)
        return self.head(self.norm(x))


class Tied(Model):
    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.head.weight = self.words.weight


class First(nn.Module):
    """One of two modules runs."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.is_interrupted = False

    def forward(self, x):
        x = self.ways[0](x)
        if self.is_interrupted:
            raise KeyboardInterrupt
        return x


def seeded(make: Callable[..., nn.Module], **sizes: Any) -> nn.Module:
    torch.manual_seed(5)
    return make(**sizes)


# one step's rows by rank, of any number
IDS = torch.randint(11, (3, 8, 4), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.roll(1, -1).flatten())


def trained_whole(
    model: nn.Module, n_steps: int = 3, optimizer: Any = torch.optim.AdamW
) -> tuple[nn.Module, list[float]]:
    """A copy, trained on the whole batch, and its losses."""
    model = copy.deepcopy(model)
    optimizer = optimizer(model.parameters(), lr=0.05)
    losses = []
    for step, ids in enumerate(IDS[:n_steps]):
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step < n_steps - 1:
            optimizer.zero_grad()
    return model, losses


def rows_of(ids: torch.Tensor, index: int, n_ranks: int) -> torch.Tensor:
    return ids.chunk(n_ranks)[index]


def shard_blocks(model: nn.Module, mesh: sw.DeviceMesh, **options: Any) -> nn.Module:
    for block in model.blocks:
        sw.fully_shard(block, mesh=mesh, **options)
    return sw.fully_shard(model, mesh=mesh, **options)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, sw.DTensor) else tensor


def expect_same(model: nn.Module, dense: nn.Module, **tolerance: float) -> None:
    """Parameters and gradients."""
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-5}
    for (name, parameter), (_, expected) in zip(model.named_parameters(), dense.named_parameters(), strict=True):
        assert (parameter.grad is None) == (expected.grad is None), name
        torch.testing.assert_close(
            full(parameter.detach()), expected.detach(), msg=lambda t, n=name: f"{n}: {t}", **tolerance
        )
        if expected.grad is not None:
            torch.testing.assert_close(
                full(parameter.grad), expected.grad, msg=lambda t, n=name: f"{n}.grad: {t}", **tolerance
            )


X = torch.rand(12, 8, generator=torch.Generator().manual_seed(3))


def expect_runs_as_whole(make, run, n_ranks=3, shard=lambda model, mesh: sw.fully_shard(model, mesh=mesh), **tolerance):
    """`run(model, part)`, where `part(x)` gives this rank's rows."""
    given = seeded(make)
    dense = copy.deepcopy(given)
    run(dense, lambda x: x)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,), mesh_dim_names=("dp",))
        model = shard(copy.deepcopy(given), mesh)
        run(model, lambda x: x.chunk(n_ranks)[rank])
        expect_same(model, dense, **tolerance)

    run_ranks(n_ranks, body, timeout=60)


def steps(n_steps, loss=lambda model, x: model(x).square().mean(), before=lambda model, step: None, x=X):
    """A program that trains."""

    def run(model, part):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(n_steps):
            optimizer.zero_grad()
            before(model, step)
            loss(model, part(x)).backward()
            if step < n_steps - 1:
                optimizer.step()

    return run


def mlp():
    return nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def shard_layers(model, mesh, **options):
    for layer in model:
        if isinstance(layer, nn.Linear):
            sw.fully_shard(layer, mesh=mesh, **options)
    return sw.fully_shard(model, mesh=mesh, **options)


def by_last_dim(parameter):
    return sw.Shard(-1) if parameter.dim() > 1 else None
