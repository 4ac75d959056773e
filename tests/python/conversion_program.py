"""Run by test_conversions.py under torchrun: conversion_program.py PARTS FOLDER, see run_parts()."""

import gc
import pickle

import torch
import torch.distributed as dist
import torch.distributed.tensor as torchs
from layouts import CASES
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.distributed.device_mesh import init_device_mesh as torchs_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper as TorchsWrapper
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torchrun import run_parts

import shardwise as sw
from shardwise import EnumerableShard, Partial, RaggedShard, Replicate, Shard

X = torch.arange(70.0).view(7, 10)


def expect_error(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was raised; expected {words}")


def what_torch_cannot_hold(case):
    """Key words of the error; nothing where it can."""
    if any(
        isinstance(placement, EnumerableShard | RaggedShard) or getattr(placement, "sizes", None)
        for placement in case.placements
    ):
        return "[to_torch] torch.distributed.tensor cannot hold"
    ranks = case.mesh().mesh
    falls = any(placement.is_shard() and (ranks.diff(dim=m) < 0).any() for m, placement in enumerate(case.placements))
    return "[to_torch] Shard(0) is along dim 0" if falls else None


def layouts(folder):
    """There and back under every layout: same memory and values, gradients both ways; what torch cannot hold is an error."""
    for case in CASES:
        ours = case.distributed().requires_grad_()
        if words := what_torch_cannot_hold(case):
            expect_error(ValueError, words, lambda x=ours: sw.to_torch(x))
            continue
        theirs = sw.to_torch(ours)
        assert type(theirs) is torchs.DTensor and theirs.shape == ours.shape and theirs.stride() == ours.stride()
        back = sw.from_torch(theirs)
        assert back.placements == ours.placements and back.device_mesh == ours.device_mesh, case.name
        if ours.device_mesh.get_coordinate() is None:
            continue
        local = ours.detach().to_local()
        assert theirs.detach().to_local().data_ptr() == local.data_ptr() == back.detach().to_local().data_ptr()
        is_max = any(p.is_partial("max") for p in case.placements)
        if not is_max:  # torch has no max of Partial pieces that carry gradients, and neither have we
            assert torch.equal(theirs.detach().full_tensor(), case.dense()), case.name
            (theirs.full_tensor() * case.dense()).sum().backward()
            assert torch.equal(ours.grad.full_tensor(), case.dense()), case.name
            ours.grad = None
            (back * back).sum().backward()
            assert torch.equal(ours.grad.full_tensor(), 2 * case.dense()), case.name


def torchs_own(folder):
    """torch's tensors become ours: of every layout of its own, in several dims, and those of its parallel modules."""
    grid = torchs_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    s0, s1, r = torchs.Shard(0), torchs.Shard(1), torchs.Replicate()
    for placements in ([s0, s1], [s1, s0], [s0, s0], [r, s0], [s1, r], [r, r]):
        theirs = torchs.distribute_tensor(X, grid, placements)
        ours = sw.from_torch(theirs)
        assert torch.equal(ours.full_tensor(), X), placements
        assert ours.to_local().data_ptr() == theirs.to_local().data_ptr()
    fallen = TorchDeviceMesh("cpu", [3, 0, 1, 2])
    expect_error(ValueError, "increasing order", lambda: sw.from_torch(torchs.distribute_tensor(X, fallen, [s0])))
    assert torch.equal(sw.from_torch(torchs.distribute_tensor(X, fallen, [r])).full_tensor(), X)
    leaf = torchs.distribute_tensor(X, grid, [s0, s1]).requires_grad_()
    (sw.from_torch(leaf) ** 2).sum().backward()
    assert torch.equal(leaf.grad.full_tensor(), 2 * X)

    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 4))
    model = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 4))
    model.load_state_dict(dense.state_dict())
    parallelize_module(model, grid["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=grid["dp"])
    strided = model[0].weight
    assert any(hasattr(placement, "split_factor") for placement in strided.placements)
    ours = sw.from_torch(strided)
    assert torch.equal(ours.full_tensor(), dense[0].weight), ours
    assert ours.device_mesh.mesh_dim_names == ("dp", "tp") and ours.placements == strided.placements
    back = sw.to_torch(ours)
    assert back.placements == strided.placements and back.device_mesh == strided.device_mesh
    assert back.to_local().data_ptr() == strided.to_local().data_ptr()
    assert torch.equal(back.full_tensor(), dense[0].weight)
    of_two = type(strided.placements[0])(0, split_factor=2)  # two parts, or against the order of mesh dims
    for placements in ([of_two, s0], [s0, of_two], [of_two, r]):
        for n_rows in (8, 7, 6, 5, 3, 1):
            rows = torch.arange(3.0 * n_rows).view(n_rows, 3)
            theirs = torchs.distribute_tensor(rows, grid, placements, src_data_rank=None)
            ours = sw.from_torch(theirs)
            assert ours.placements == theirs.placements and torch.equal(ours.full_tensor(), rows)
            assert torch.equal(ours.to_local(), theirs.to_local())
            assert torch.equal(sw.to_torch(ours).to_local(), theirs.to_local())


def given_by_mistake(folder):
    """torch's tensors where ours are made: converted, or an error."""
    mesh, theirs_on = sw.init_device_mesh("cpu", (4,)), torchs_mesh("cpu", (4,))
    theirs = torchs.distribute_tensor(X, theirs_on, [torchs.Shard(0)])
    for placements in ([Shard(1)], [Shard(0)], [Replicate()], [Shard(0, sizes=[1, 0, 6, 0])]):
        ours = sw.distribute_tensor(theirs, mesh, placements)
        assert type(ours) is sw.DTensor and ours.placements == tuple(placements)
        assert torch.equal(ours.full_tensor(), X)
    words = "[from_local] the local tensor is a torch.distributed.tensor.DTensor"
    expect_error(TypeError, words, lambda: sw.DTensor.from_local(theirs, mesh, [Shard(0)]))
    expect_error(TypeError, words, lambda: sw.DTensor.from_local(theirs, mesh, [Shard(0)], run_check=True))
    expect_error(TypeError, "torch.distributed.tensor.DTensor", lambda: sw.LocalShardsWrapper([theirs], [(0, 0)]))
    expect_error(TypeError, "where a DTensor is needed", lambda: sw.DTensor.redistribute(theirs, mesh, [Shard(0)]))
    expect_error(TypeError, "[from_torch] Tensor is neither", lambda: sw.from_torch(X))
    expect_error(TypeError, "[to_torch] DTensor is neither", lambda: sw.to_torch(theirs))

    rank = dist.get_rank()
    rows = [(0, 1), (1, 1), (1, 4), (4, 7)][rank]
    pieces = [X[rows[0] : rows[1]].clone()] if rows[0] < rows[1] else []
    wrapper = TorchsWrapper(pieces, [(rows[0], 0)] if pieces else [])
    ours = sw.DTensor.from_local(wrapper, mesh, [Shard(0)])
    assert ours.to_local() is wrapper and ours.placements == (Shard(0, sizes=[1, 0, 3, 3]),)
    assert torch.equal(ours.full_tensor(), X)

    pending = torch.distributed._functional_collectives.all_reduce(torch.ones(3), "sum", theirs_on)
    assert sw.DTensor.from_local(pending, mesh, [Replicate()]).full_tensor().tolist() == [4] * 3


def tied():
    model = nn.Sequential(nn.Embedding(9, 4), nn.BatchNorm1d(4), nn.Linear(4, 9, bias=False))
    model[2].weight = model[0].weight
    model[1].weight.requires_grad_(False)
    return model


def modules(folder):
    """In place both ways: ties, buffers, gradients and memory are kept."""
    mesh = sw.init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    model = sw.distribute_module(tied(), mesh)
    model[0].weight = model[2].weight = nn.Parameter(model[0].weight.detach().redistribute(placements=[Shard(0)]))
    ids = sw.distribute_tensor(torch.tensor([1, 8, 8, 3]), mesh, [Replicate()])
    model(ids).square().sum().backward()
    before = {name: tensor.detach().full_tensor() for name, tensor in model.state_dict().items()}
    gradient = model[0].weight.grad.full_tensor()
    address = model[0].weight.to_local().data_ptr()
    for convert, kind in ((sw.to_torch, torchs.DTensor), (sw.from_torch, sw.DTensor)):
        assert convert(model) is model
        assert model[0].weight is model[2].weight
        assert all(type(tensor.detach()) is kind for tensor in [*model.parameters(), *model.buffers()])
        assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
        assert not model[1].weight.requires_grad and model[0].weight.requires_grad
        assert model[0].weight.to_local().data_ptr() == address
        assert torch.equal(model[0].weight.grad.full_tensor(), gradient)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.full_tensor(), before[name]), name
    uneven = nn.Parameter(sw.distribute_tensor(torch.ones(5), mesh, [Shard(0, sizes=[5, 0, 0, 0])]))
    model.register_parameter("uneven", uneven)
    expect_error(ValueError, "Shard(0, sizes=[5, 0, 0, 0])", lambda: sw.to_torch(model))
    assert all(isinstance(parameter, sw.DTensor) for parameter in model.parameters())

    theirs = torchs.distribute_module(tied(), torchs_mesh("cpu", (4,)))
    theirs[2].weight = theirs[0].weight
    sw.distribute_module(theirs, mesh)
    assert all(isinstance(parameter, sw.DTensor) for parameter in theirs.parameters())
    assert theirs[0].weight is theirs[2].weight


def loaded(folder):
    """A module of ours loads torch's DTensors."""
    theirs = torchs.distribute_module(tied(), torchs_mesh("cpu", (4,)))
    ours = sw.distribute_module(tied(), sw.init_device_mesh("cpu", (4,)))
    ours.load_state_dict(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name].full_tensor(), tensor.full_tensor()), name


def partials(folder):
    """Every kind of Partial, and meshes of some ranks in another order."""
    for reduce_op in ("sum", "avg", "max", "min", "product"):
        mesh = sw.DeviceMesh("cpu", [2, 0, 1])
        ours = sw.DTensor.from_local(
            torch.full((2,), 1.0 + dist.get_rank()), mesh, [Partial(reduce_op)], shape=(2,), stride=(1,)
        )
        theirs = sw.to_torch(ours)
        if mesh.get_coordinate() is not None:
            assert torch.equal(theirs.full_tensor(), ours.full_tensor()), reduce_op
        assert sw.from_torch(theirs).placements == (Partial(reduce_op),)
    same = sw.to_torch(ours).device_mesh
    assert isinstance(same, TorchDeviceMesh) and same is theirs.device_mesh


def slices(folder):
    """Of one mesh on each rank, over its groups: those of the ranks have one name otherwise, and mix up their messages."""
    grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("tp", "dp"):
        own = X + dist.get_rank() // 2 if name == "tp" else X + dist.get_rank() % 2
        ours = sw.distribute_tensor(own, grid[name], [Shard(0)])
        theirs = sw.to_torch(ours)
        assert torch.equal(theirs.full_tensor(), own)
        assert theirs.device_mesh.get_group() is grid.get_group(name)
        back = sw.from_torch(theirs)
        assert back.device_mesh == grid[name] and torch.equal(back.full_tensor(), own)
        torch.save(ours, f"{folder}/{name}{dist.get_rank()}")
    torch.save(grid["tp"], f"{folder}/mesh{dist.get_rank()}")
    flat = grid["dp", "tp"]._flatten("all")
    torch.save(sw.distribute_tensor(X, flat, [Shard(0)]), f"{folder}/all{dist.get_rank()}")


def slices_loaded(folder):
    """Where the mesh that they are of has not been made."""
    rank = dist.get_rank()
    for name, own in (("tp", X + rank // 2), ("dp", X + rank % 2), ("all", X)):
        loaded = torch.load(f"{folder}/{name}{rank}", weights_only=name == "tp")
        assert torch.equal(loaded.full_tensor(), own) and loaded.device_mesh.mesh_dim_names == (name,)
        groups = [None] * 4
        dist.all_gather_object(groups, loaded.device_mesh.get_group().group_name)
        assert len(set(groups)) == 4 // loaded.device_mesh.size()  # each group has a name of its own
    others = torch.load(f"{folder}/mesh{(rank + 2) % 4}")
    assert others.mesh.tolist() == ([2, 3] if rank < 2 else [0, 1])


def slices_kept_by_tensors(folder):
    """The program lets go of its meshes; a tensor keeps its own."""
    ranks = [[0, 1], [2, 3]]
    mesh = sw.DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
    mesh["dp", "tp"]._flatten("all")
    tensors = [sw.ones(4, device_mesh=mesh[name], placements=[Shard(0)]) for name in ("dp", "tp", "all")]
    alone = sw.DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"), _init_backend=False)
    local = sw.DTensor.from_local(X, alone["dp"], [Shard(0)], shape=(14, 10), stride=(10, 1))
    del mesh, alone
    gc.collect()
    for tensor in tensors:
        own = tensor.device_mesh
        root = own._get_root_mesh()
        assert root.mesh.tolist() == ranks and root.mesh_dim_names == ("dp", "tp")
        assert pickle.loads(pickle.dumps(own)) == own and own.__reduce__()[0] is not sw.device_mesh.rebuild_mesh
    assert tensors[1].device_mesh._get_root_mesh()["tp"] == tensors[1].device_mesh
    expect_error(RuntimeError, "process groups not initialized!", local.device_mesh.get_group)


def slices_of_eight(folder):
    """In twos and fours."""
    rank = dist.get_rank()
    grid = sw.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    fours = grid["dp", "tp"]._flatten("fours")
    for mesh, own in ((grid["tp"], X + rank // 2), (fours, X + rank // 4)):
        torch.save(sw.distribute_tensor(own, mesh, [Shard(0)]), f"{folder}/{mesh.mesh_dim_names[0]}{rank}")


def slices_of_eight_loaded_by_four(folder):
    """Those whose ranks are all there; they are saved again."""
    rank = dist.get_rank()
    for name, own in (("tp", X + rank // 2), ("fours", X)):
        loaded = torch.load(f"{folder}/{name}{rank}", weights_only=True)
        assert torch.equal(loaded.full_tensor(), own) and loaded.device_mesh.mesh_dim_names == (name,)
        groups = [None] * 4
        dist.all_gather_object(groups, loaded.device_mesh.get_group().group_name)
        assert len(set(groups)) == 4 // loaded.device_mesh.size()
        torch.save(loaded, f"{folder}/{name}{rank}")


def slices_loaded_by_half(folder):
    """Of the ranks: the slice is there, the mesh that it is of is not."""
    loaded = torch.load(f"{folder}/tp{dist.get_rank()}")
    assert torch.equal(loaded.full_tensor(), X) and loaded.device_mesh.mesh.tolist() == [0, 1]


if __name__ == "__main__":
    run_parts(globals())
