"""A small model and loose parameters in layouts of every kind, and programs on them compared with the same on plain tensors."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

torch.manual_seed(0)
MLP = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2))
X = torch.linspace(-1, 1, 15).view(5, 3)

# placements of the parameters on four ranks; the others are replicated
LAYOUTS = {
    "sharded": {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1)},
    "uneven, one piece empty": {
        "0.weight": Shard(0, sizes=[1, 0, 7, 2]),
        "0.bias": Shard(0, sizes=[1, 0, 7, 2]),
        "2.weight": Shard(1, sizes=[0, 5, 5, 0]),
    },
}

Program = Callable[[nn.Module, Callable[[torch.Tensor], Any]], list[Any]]


def sharded(model: nn.Module, mesh: sw.DeviceMesh, placements: dict[str, Any]) -> nn.Module:
    """The model with these parameters sharded and the others replicated."""

    def partition(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            placement = placements.get(f"{name}.{key}", Replicate())
            made = sw.distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
            module.register_parameter(key, nn.Parameter(made, requires_grad=parameter.requires_grad))

    return sw.distribute_module(model, mesh, partition)


def replicas_on(mesh: sw.DeviceMesh) -> Callable[[torch.Tensor], Any]:
    return lambda x: sw.distribute_tensor(x, mesh, [Replicate()], src_data_rank=None)


def expect_as_dense(program: Program, *, model: nn.Module = MLP, tolerance: float = 1e-4, layouts: Any = None) -> None:
    """`program(model, replicate)` gives the same tensors and values on four ranks in every layout as on plain ones.

    `replicate` makes of a plain tensor what the model takes.
    """
    expected = program(copy.deepcopy(model), lambda x: x.clone())

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for name, placements in (layouts or LAYOUTS).items():
            found = program(sharded(copy.deepcopy(model), mesh, placements), replicas_on(mesh))
            expect_same(found, expected, tolerance, name)

    run_ranks(4, on_rank)


def expect_same(found: list[Any], expected: list[Any], tolerance: float = 1e-5, where: str = "") -> None:
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs, (where, i)
            continue
        whole = ours.detach().full_tensor() if isinstance(ours, sw.DTensor) else ours.detach()
        if isinstance(ours, sw.DTensor) and ours.device_mesh.get_coordinate() is None:
            continue
        torch.testing.assert_close(
            whole, theirs.detach(), rtol=tolerance, atol=tolerance, msg=lambda text, i=i: f"{where}, value {i}: {text}"
        )


SHAPES = [(6, 4), (5, 3), (4, 6), (3,), (2, 2), (8,), ()]


def dense_parameters(shapes=SHAPES) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def distributed_parameters(kind: str, shapes=SHAPES) -> list[nn.Parameter]:
    """The same on four ranks: on "one mesh", on "two meshes", or "mixed": on three, one of which lacks ranks, and plain."""
    line, grid = sw.init_device_mesh("cpu", (4,)), sw.init_device_mesh("cpu", (2, 2))
    pair = sw.DeviceMesh("cpu", [3, 1])
    places = {
        "one mesh": [
            (line, [Shard(0)]),
            (line, [Shard(0, sizes=[1, 0, 4, 0])]),
            (line, [Shard(1)]),
            (line, [Shard(0)]),
            (line, [Replicate()]),
            (line, [Shard(0, sizes=[0, 0, 8, 0])]),
            (line, [Replicate()]),
        ],
        "two meshes": [
            (line, [Shard(0)]),
            (grid, [Shard(0), Shard(1)]),
            (grid, [Replicate(), Shard(1)]),
            (line, [Shard(0)]),
            (line, [Replicate()]),
            (grid, [Shard(0), Shard(0)]),
            (grid, [Replicate(), Replicate()]),
        ],
        "mixed": [
            (line, [Shard(0)]),
            (grid, [Shard(0), Shard(1)]),
            None,
            (pair, [Shard(0)]),
            None,
            (line, [Shard(0, sizes=[0, 0, 8, 0])]),
            None,
        ],
    }[kind]
    return [
        nn.Parameter(dense.detach().clone() if place is None else sw.distribute_tensor(dense.detach(), *place))
        for dense, place in zip(dense_parameters(shapes), places, strict=True)
    ]


KINDS = ["one mesh", "two meshes", "mixed"]


def steps(optimizer: torch.optim.Optimizer, n_steps: int = 3) -> None:
    """Steps with gradients that depend on the parameters."""
    for step in range(n_steps):
        for i, parameter in enumerate(parameters_of(optimizer)):
            parameter.grad = torch.cos(parameter.detach() * (step + i + 1))
        optimizer.step()


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
