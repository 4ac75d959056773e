"""The caller's mistakes: exception type and key words. Every rank raises, before any message."""

import pytest
import torch
from torch.distributed.tensor import Shard as TorchShard

import shardwise as sw
from shardwise import DTensor, EnumerableShard, Partial, Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.testing import run_ranks

ONES = torch.ones(6, 2)


def placed(mesh, *placements):
    return sw.distribute_tensor(ONES, mesh, placements or [Shard(0)])


# what is done with a mesh of 2 ranks, the exception's type, its key words
ERRORS = {
    "a mesh dim without placement": (
        lambda mesh: sw.distribute_tensor(ONES, mesh, [Shard(0), Shard(1)]),
        ValueError,
        "2 placements",
    ),
    "a tensor dim that does not exist": (lambda mesh: placed(mesh, Shard(2)), IndexError, r"Shard\(2\)"),
    "a negative dim that does not exist": (lambda mesh: placed(mesh, Shard(-3)), IndexError, r"Shard\(-3\)"),
    "sizes that do not add up": (lambda mesh: placed(mesh, Shard(0, [1, 2])), ValueError, r"sizes=\[1, 2\]"),
    "too many sizes": (lambda mesh: placed(mesh, Shard(0, [1, 2, 3])), ValueError, r"sizes=\[1, 2, 3\]"),
    "negative sizes": (lambda mesh: Shard(0, [7, -1]), ValueError, "-1"),
    "no sizes": (lambda mesh: Shard(0, []), ValueError, "sizes"),
    "an unknown reduction": (lambda mesh: Partial("median"), ValueError, "median.*product"),
    "pieces that overlap": (
        lambda mesh: EnumerableShard([Piece((0, 0), (4, 2), 0), Piece((3, 0), (3, 2), 1)]),
        ValueError,
        "overlap",
    ),
    "pieces with a hole": (
        lambda mesh: placed(mesh, EnumerableShard([Piece((0, 0), (4, 2), 0), Piece((5, 0), (1, 2), 1)])),
        ValueError,
        r"\[4:5, 0:2\]",
    ),
    "a piece on a rank outside the mesh": (
        lambda mesh: placed(mesh, EnumerableShard([Piece((0, 0), (6, 2), 7)])),
        ValueError,
        "rank 7",
    ),
    "no placement": (lambda mesh: placed(mesh, "Shard(0)"), TypeError, r"\[placements\] 'Shard\(0\)' is no placement"),
    "a placement alone": (
        lambda mesh: sw.distribute_tensor(ONES, mesh, Shard(0)),
        TypeError,
        r"\[placements\] Shard\(0\) stands alone. Give a sequence with one placement per mesh dim: \[Shard\(0\)\]",
    ),
    "a placement alone for a local tensor": (
        lambda mesh: DTensor.from_local(ONES, mesh, Replicate()),
        TypeError,
        r"Replicate\(\) stands alone",
    ),
    "a placement of torch's alone": (
        lambda mesh: placed(mesh).redistribute(placements=TorchShard(1)),
        TypeError,
        r"Shard\(1\) stands alone",
    ),
    "a placement alone to fill": (
        lambda mesh: sw.zeros(3, device_mesh=mesh, placements=Shard(0)),
        TypeError,
        r"Shard\(0\) stands alone",
    ),
    "a placement alone for many": (
        lambda mesh: sw.redistribute_many([placed(mesh)], Shard(0)),
        TypeError,
        r"Shard\(0\) stands alone",
    ),
    "no mesh": (lambda mesh: placed("cpu"), TypeError, r"\[device_mesh\] 'cpu' is no mesh"),
    "a duplicate rank": (lambda mesh: sw.DeviceMesh("cpu", [0, 0]), ValueError, "rank 0"),
    "an unknown rank": (lambda mesh: sw.DeviceMesh("cpu", [0, 5]), ValueError, "rank 5 is not in the world of 2 ranks"),
    "a mesh larger than the world": (lambda mesh: sw.init_device_mesh("cpu", (4,)), ValueError, "world of 2 ranks"),
    "one name for two dims": (
        lambda mesh: sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp",)),
        RuntimeError,
        "mesh_shape and mesh_dim_names should have same length",
    ),
    "a name twice": (
        lambda mesh: sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "dp")),
        RuntimeError,
        "Each mesh_dim_name must be unique",
    ),
    "an unknown name": (lambda mesh: mesh["tp"], RuntimeError, "Cannot slice a DeviceMesh without mesh_dim_names"),
    "an unknown name of a dim": (
        lambda mesh: sw.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))["tp"],
        KeyError,
        r"no mesh dim is called 'tp'. The mesh has \['dp'\]",
    ),
    "an unknown mesh dim": (lambda mesh: mesh.size(3), IndexError, "mesh dim 3 does not exist"),
    "a device with an index": (
        lambda mesh: sw.DeviceMesh("cuda:0", [0]),
        ValueError,
        'device_type "cuda:0" has an index',
    ),
    "a device with an index, by init_device_mesh": (
        lambda mesh: sw.init_device_mesh("cuda:0", (1,)),
        RuntimeError,
        "Device type with index is not supported",
    ),
    "which mesh dim": (
        lambda mesh: sw.init_device_mesh("cpu", (2, 1)).get_local_rank(),
        RuntimeError,
        "2 dims. Say which",
    ),
    "a local piece of another shape": (
        lambda mesh: DTensor.from_local(ONES, mesh, [Shard(0)], shape=(7, 2), stride=(2, 1)),
        ValueError,
        r"\[from_local\] rank \d gives a piece of shape \[6, 2\]",
    ),
    "a shape of other dims": (
        lambda mesh: DTensor.from_local(ONES, mesh, [Shard(0)], shape=(12,), stride=(1,)),
        ValueError,
        r"shape \[12\] has 1 dims",
    ),
    "a DTensor as local tensor": (
        lambda mesh: DTensor.from_local(placed(mesh), mesh, [Shard(0)]),
        TypeError,
        r"\[from_local\] the local tensor is a DTensor",
    ),
    "a tensor with a history of gradients": (
        lambda mesh: sw.distribute_tensor(ONES.clone().requires_grad_() * 2, mesh, [Shard(0)]),
        RuntimeError,
        r"\[distribute_tensor\] should be used to distribute leaf tensors.*Give tensor.detach\(\)",
    ),
    "a tensor with a history of gradients on one rank": (
        lambda mesh: sw.distribute_tensor(
            ONES.clone().requires_grad_() * 2 if mesh.get_rank() else ONES, mesh, [Shard(0)]
        ),
        ValueError,
        r"rank 0 gives a tensor Float \[6, 2\], rank 1 one Float \[6, 2\] that is not a leaf",
    ),
    "shapes that differ between ranks": (
        lambda mesh: DTensor.from_local(torch.ones(mesh.get_rank() + 1), mesh, [Shard(0)], run_check=True),
        ValueError,
        r"\[from_local\] the pieces \[1\] of rank 0 and \[2\] of rank 1 belong to different tensors",
    ),
    "requires_grad that differs between ranks": (
        lambda mesh: DTensor.from_local(
            torch.ones(2, requires_grad=mesh.get_rank() == 1), mesh, [Replicate()], run_check=True
        ),
        ValueError,
        r"\[from_local\] the piece of rank 1 requires a gradient, that of rank 0 does not",
    ),
    "no placements to move to": (
        lambda mesh: placed(mesh).redistribute(),
        ValueError,
        r"\[redistribute\] got no placements",
    ),
    "an unknown objective": (
        lambda mesh: placed(mesh).redistribute(placements=[Shard(0)], objective="speed"),
        ValueError,
        r'\[redistribute\] objective "speed" is not known',
    ),
    "links of another mesh": (
        lambda mesh: placed(mesh).redistribute(placements=[Replicate()], links=[(1, 1), (1, 1)]),
        ValueError,
        "2 links are given for a mesh of 1 dims",
    ),
    "fewer lists of placements than tensors": (
        lambda mesh: sw.redistribute_many([placed(mesh), placed(mesh)], [[Shard(0)]]),
        ValueError,
        r"\[redistribute_many\] 2 tensors came with 1 lists",
    ),
    "a plain tensor among many": (
        lambda mesh: sw.redistribute_many([placed(mesh), ONES], [Shard(0)]),
        TypeError,
        "where a DTensor is needed",
    ),
    "a source that is no member": (
        lambda mesh: sw.distribute_tensor(ONES, mesh, [Shard(0)], src_data_rank=2),
        ValueError,
        "src_data_rank 2",
    ),
    "a Partial to fill": (
        lambda mesh: sw.ones(3, device_mesh=mesh, placements=[Partial()]),
        ValueError,
        r"Partial\(sum\)",
    ),
    "a Partial to draw": (
        lambda mesh: sw.rand(3, device_mesh=mesh, placements=[Partial()]),
        ValueError,
        r"Partial\(sum\)",
    ),
    "integers to draw": (
        lambda mesh: sw.rand(3, device_mesh=mesh, dtype=torch.int64),
        TypeError,
        "draws no Long numbers",
    ),
    "a plain tensor beside a DTensor": (
        lambda mesh: placed(mesh) + ONES,
        ValueError,
        r"\[aten::add.Tensor\] got a torch.Tensor",
    ),
    "two meshes": (
        lambda mesh: placed(mesh) + placed(sw.DeviceMesh("cpu", [1, 0])),
        ValueError,
        r"different meshes: \(2\) and \(2: ranks \[1, 0\]\)",
    ),
    "what dense tensors refuse": (
        lambda mesh: placed(mesh) @ placed(mesh),
        RuntimeError,
        "does not match the other tensors",
    ),
    "whole tensors of different shapes": (
        lambda mesh: sw.distribute_tensor(torch.ones(4 + mesh.get_rank(), 2), mesh, [Shard(0)]),
        ValueError,
        r"rank 0 gives a tensor Float \[4, 2\], rank 1 one Float \[5, 2\]",
    ),
    "a wrapper to be sharded": (
        lambda mesh: sw.distribute_tensor(sw.LocalShardsWrapper([ONES], [(0, 0)]), mesh, [Shard(0)]),
        ValueError,
        r"\[distribute_tensor\].*LocalShardsWrapper goes to DTensor.from_local",
    ),
    "a mesh dim named twice": (
        lambda mesh: sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))["a", "a"],
        ValueError,
        'dim "a" is named twice',
    ),
    "a dtype that the kernel refuses, where a rank has no rows": (
        lambda mesh: placed(mesh, Shard(0, [6, 0])).long().softmax(1),
        (RuntimeError, NotImplementedError),
        "not implemented for 'Long'",
    ),
    "the maximum of nothing": (
        lambda mesh: sw.zeros(0, 3, device_mesh=mesh, placements=[Shard(0)]).amax(0),
        IndexError,
        "non-zero size",
    ),
    "the gradient of a maximum whose owner is unknown": (
        lambda mesh: (
            DTensor.from_local(ONES.clone().requires_grad_(), mesh, [Partial("max")])
            .redistribute(placements=[Replicate()])
            .sum()
            .backward()
        ),
        NotImplementedError,
        r"\[from_local\] a Partial of max, min or product has no gradient",
    ),
    "to_local of a plain tensor": (lambda mesh: DTensor.to_local(ONES), TypeError, "stands where a DTensor is needed"),
    "arguments of other types": (
        lambda mesh: DTensor.from_local(3, mesh, [Replicate()]),
        TypeError,
        "incompatible function arguments",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_mistake_is_named(name):
    act, error, words = ERRORS[name]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        with pytest.raises(error, match=words):
            act(mesh)
        return placed(mesh).sum().item()  # all ranks are still in step

    assert run_ranks(2, body) == [12, 12]
