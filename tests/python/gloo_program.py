"""Run by test_processes.py under torchrun: gloo_program.py PART FOLDER prints PART-RANK where all is well."""

import copy
import os
import pickle
import sys
import time
import warnings
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as distributed_nn
from layouts import CASES
from torch import nn
from torch.distributed._composable import replicate as replicate_by_buckets
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.distributed.device_mesh import init_device_mesh as torch_init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as checkpoint_of

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def layouts(folder):
    """Every layout, on the groups of real processes; the process group is made by the first mesh."""
    assert not dist.is_initialized()
    for case in CASES:
        tensor = case.distributed().requires_grad_()
        full = tensor.full_tensor()
        if tensor.device_mesh.get_coordinate() is not None:
            assert torch.equal(full, case.dense()), case.name
            (full * full).sum().backward()
            assert torch.equal(tensor.grad.full_tensor(), 2 * case.dense()), case.name
    dist.destroy_process_group()


def groups(folder):
    """A mesh's groups are torch.distributed's, and inherit the time-out."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=77))
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rank = dist.get_rank()
    group = mesh.get_group("tp")
    assert dist.get_process_group_ranks(group) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert group._get_backend(torch.device("cpu")).options._timeout.total_seconds() == 77
    assert dist.get_process_group_ranks(sw.init_device_mesh("cpu", (4,)).get_group()) == [0, 1, 2, 3]
    count = torch.ones(1)
    dist.all_reduce(count, group=mesh.get_group("dp"))
    assert count.item() == 2
    lone = sw.DeviceMesh("cpu", [1, 3])
    assert (lone.get_group() is None) == (rank in (0, 2))
    dist.destroy_process_group()


def torch_meshes(folder):
    """torch's meshes are accepted wherever ours are: whole, sliced by name, flattened, under permuted ranks."""
    x = torch.arange(14.0).view(7, 2)
    grid = torch_init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    flat = grid._flatten("all")
    assert torch.equal(sw.distribute_tensor(x, grid, [Shard(0), Shard(1)]).full_tensor(), x)
    for mesh in (grid["tp"], grid["dp"], flat, TorchDeviceMesh("cpu", [2, 0, 3, 1])):
        tensor = sw.distribute_tensor(x, mesh, [Shard(0)])
        assert torch.equal(tensor.full_tensor(), x)
        assert tensor.device_mesh.mesh.tolist() == mesh.mesh.tolist()
    local = sw.distribute_tensor(x, grid, [Shard(0), Replicate()])
    assert torch.equal(local.redistribute(grid, [Replicate(), Shard(1)]).full_tensor(), x)
    cube = torch_init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("a", "b", "c"))
    half = cube["b", "c"]
    assert torch.equal(sw.distribute_tensor(x, half, [Shard(0), Shard(1)]).full_tensor(), x)
    ours = sw.init_device_mesh("cpu", (4,))
    with ours, grid:
        assert sw.zeros(4).device_mesh.shape == (2, 2)
        with ours:
            assert sw.zeros(4).device_mesh is ours
    assert sw.distribute_tensor(x, cube["a", "b"]._flatten("ab"), [Shard(0)]).device_mesh.size() == 2
    dist.destroy_process_group()


def new_world(folder):
    """A process group that was destroyed and made again is a new world; tensors of the old one do not mix with it."""
    meshes = []
    for i in range(3):  # each with a store of its own: torch's over TCP does not survive being opened again
        place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group("gloo", init_method=f"file://{folder}/world{i}", **place)
        for mesh in meshes[-1:]:
            torch_init_device_mesh("cpu", (4, 1))  # whose groups have the names of the last world's
            torch_init_device_mesh("cpu", (2, 2))
            for dim in range(3):
                expect_destroyed(mesh, dim)
        meshes.append(sw.init_device_mesh("cpu", (2, 2, 1)))
        x = sw.ones(8, device_mesh=meshes[-1], placements=[Shard(0), Shard(0), Replicate()])
        assert x.sum().item() == 8
        dist.barrier()
        dist.destroy_process_group()
    assert len(set(map(id, meshes))) == 3 and meshes[0] != meshes[1]
    for mesh in (meshes[0], meshes[2]):
        expect_destroyed(mesh, 0)


def saved_meshes(folder):
    """A mesh that is a slice on some ranks and was made by itself, too, is loaded by groups that all ranks make in one order."""
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    rank = place["rank"]
    for kind in range(4):
        dist.init_process_group("gloo", init_method=f"file://{folder}/saved{kind}", **place)
        grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        crossed = sw.DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("dp", "tp"))
        pair = sw.DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",)) if kind < 3 else grid["tp"]
        held = [pair, grid["tp"], crossed["tp"], grid["tp"]._flatten("all")][kind]
        files = [pickle.dumps(sw.ones(6, device_mesh=held, placements=[Shard(0)])), pickle.dumps(held)]
        kept = held.mesh.tolist()
        dist.destroy_process_group()

        dist.init_process_group("gloo", init_method=f"file://{folder}/loaded{kind}", **place)
        for file in files:
            loaded = pickle.loads(file)
            mesh = getattr(loaded, "device_mesh", loaded)
            assert mesh.mesh.tolist() == kept, (rank, kind, mesh)
            if mesh.get_coordinate() is not None:
                assert sw.ones(6, device_mesh=mesh, placements=[Shard(0)]).sum().item() == 6
        last = sw.ones(4, device_mesh=sw.DeviceMesh("cpu", [1, 2]), placements=[Shard(0)])
        assert rank not in (1, 2) or last.sum().item() == 4
        dist.barrier()
        dist.destroy_process_group()


def expect_destroyed(mesh, dim):
    try:
        mesh.get_group(dim)  # None would be all ranks of the new world, for torch
    except ValueError as error:
        assert "destroyed" in str(error), error
    else:
        raise AssertionError("a mesh of a world that is gone gave a group")


def left_open(folder):
    """Nobody destroys the process group, and tensors live to the end."""
    global kept
    mesh = sw.init_device_mesh("cpu", (2, 2))
    kept = sw.ones(8, requires_grad=True, device_mesh=mesh, placements=[Shard(0), Shard(0)])
    (kept * kept).sum().backward()
    dist.barrier()


def moves(folder):
    """Asynchronous moves, many tensors at once, and other meshes, over real messages."""
    x = torch.arange(77.0).view(11, 7)
    mesh, grid = sw.init_device_mesh("cpu", (4,)), sw.init_device_mesh("cpu", (2, 2))
    pairs = [
        ([Shard(0)], [Shard(1)]),
        ([Shard(1)], [Replicate()]),
        ([Partial()], [Shard(0)]),
        ([Partial()], [Replicate()]),
    ]
    started = [
        sw.distribute_tensor(x + i, mesh, source).redistribute(placements=target, async_op=True)
        for i, (source, target) in enumerate(pairs)
    ]
    for i, tensor in reversed(list(enumerate(started))):  # the first use is not in the order of the starts
        assert torch.equal(tensor.full_tensor(), x + i), pairs[i]
    tensors = [sw.distribute_tensor(x + i, mesh, source).requires_grad_() for i, (source, _) in enumerate(pairs)]
    moved = sw.redistribute_many(tensors, [target for _, target in pairs])
    sum((tensor.sum() * (i + 1)).full_tensor() for i, tensor in enumerate(moved)).backward()
    for i, (tensor, result) in enumerate(zip(tensors, moved, strict=True)):
        assert torch.equal(result.full_tensor(), x + i), pairs[i]
        assert torch.equal(tensor.grad.full_tensor(), torch.full_like(x, i + 1)), pairs[i]
    capped = tensors[0].detach().redistribute(placements=[Shard(1)], memory_cap=64)
    assert torch.equal(capped.to_local(), moved[0].to_local())
    lower, upper = sw.DeviceMesh("cpu", [0, 1]), sw.DeviceMesh("cpu", [3, 2])
    for source, placements, other, target in [
        (mesh, [Shard(0)], grid, [Shard(1), Shard(0)]),
        (mesh, [Partial()], sw.DeviceMesh("cpu", [3, 1, 0, 2]), [Shard(0)]),
        (mesh, [Shard(0)], lower, [Shard(1)]),
        (lower, [Shard(0)], upper, [Shard(0)]),
        (upper, [Replicate()], mesh, [Shard(0, [1, 0, 9, 1])]),
    ]:
        tensor = sw.distribute_tensor(x, source, placements, src_data_rank=None)
        back = tensor.redistribute(other, target).redistribute(mesh, [Replicate()])
        assert torch.equal(back.to_local(), x), (placements, target)
    dist.destroy_process_group()


def waits_at_different_places(folder):
    """A move that runs in the background does not need the other ranks to wait for it at the same place."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank, mesh = dist.get_rank(), sw.init_device_mesh("cpu", (4,))
    for n in (4, 400):
        terms = [
            sw.DTensor.from_local(torch.full((n,), i * (rank + 1.0)), mesh, [Partial()], run_check=False)
            for i in (1, 2)
        ]
        first = terms[0].redistribute(mesh, [Replicate()], async_op=True)
        if rank < 2:
            assert torch.equal(first.to_local(), torch.full((n,), 10.0))
        assert torch.equal(terms[1].redistribute(mesh, [Replicate()]).to_local(), torch.full((n,), 20.0))
        assert torch.equal(first.to_local(), torch.full((n,), 10.0))
    dist.destroy_process_group()


def read_alone(folder):
    """What one rank prints, saves or takes out of a view whose source was written to keeps nobody waiting."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    mesh = sw.init_device_mesh("cpu", (4,))
    base = sw.distribute_tensor(torch.arange(36.0).view(6, 6), mesh, [Shard(0)])
    row = base[3]
    base.mul_(2)
    if dist.get_rank() == 0:
        assert "stale" in repr(row) and "stale" not in repr(base)
        for read in (sw.DTensor.to_local, pickle.dumps, copy.deepcopy):
            try:
                read(row)
            except ValueError as error:
                assert "Call clone() on all ranks" in str(error)
            else:
                raise AssertionError(f"{read} gave stale values")
    assert row.full_tensor().tolist() == [36, 38, 40, 42, 44, 46]
    assert "stale" not in repr(row) and torch.equal(pickle.loads(pickle.dumps(row)).full_tensor(), row.full_tensor())
    row.to_local()
    dist.destroy_process_group()


def torch_collectives(folder):
    """torch.distributed's own collectives refuse DTensors on all ranks alike, and say what they take instead."""
    warnings.simplefilter("ignore", FutureWarning)  # torch is giving some of them other names
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    mesh = sw.init_device_mesh("cpu", (4,))
    x = sw.distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    model = nn.ModuleDict({"table": nn.Embedding(8, 2), "linear": nn.Linear(2, 2)})
    model["table"].weight = nn.Parameter(sw.distribute_tensor(model["table"].weight.detach(), mesh, [Shard(0)]))
    refused = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather([torch.empty_like(x) for _ in range(4)], x),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.zeros(32), x),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.zeros(2), x),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty_like(x), x),
        "nn.all_reduce": lambda: distributed_nn.all_reduce(x),
        "nn.broadcast": lambda: distributed_nn.broadcast(x, 0),
        "nn.all_gather": lambda: distributed_nn.all_gather(x),
        "nn.all_to_all_single": lambda: distributed_nn.all_to_all_single(torch.empty_like(x), x),
        "functional all_reduce": lambda: functional_collectives.all_reduce(x, "sum", dist.group.WORLD),
        "functional all_gather": lambda: functional_collectives.all_gather_tensor(x, 0, dist.group.WORLD),
    }
    for name, call in refused.items():
        try:
            call()
        except TypeError as error:
            assert "take tensors of this rank, not DTensors" in str(error), (name, error)
        else:
            raise AssertionError(f"{name} took a DTensor")
    own = x.to_local().clone()
    dist.all_reduce(own)
    assert own.tolist() == [12, 16]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["table.weight"])
    nn.parallel.DistributedDataParallel(model)
    dist.destroy_process_group()


class Ranking(nn.Module):
    """A sharded table under a plain layer, as recommenders have them: rows of this rank's ids, then its part of the batch."""

    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear = nn.Embedding(10, 4), nn.Linear(4, 2)
        if mesh:
            self.table.weight = nn.Parameter(sw.distribute_tensor(self.table.weight.detach(), mesh, [Shard(0)]))

    def forward(self, ids):
        rows = self.table(ids)
        return self.linear(rows.to_local() if isinstance(rows, sw.DTensor) else rows)


def torch_data_parallel(folder):
    """fully_shard and ZeroRedundancyOptimizer refuse our parameters on all ranks; beside those that are left out they work."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    mesh, theirs = sw.init_device_mesh("cpu", (4,)), torch_init_device_mesh("cpu", (4,))
    dense, ours = Ranking(None), Ranking(mesh)
    optimizer = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD, lr=1.0)
    refused = {
        "weight is a DTensor of shape [10, 4] placed as [Shard(0)]": lambda: fully_shard(Ranking(mesh), mesh=theirs),
        "ZeroRedundancyOptimizer] got a DTensor of shape [10, 4]": lambda: optimizer(ours.parameters()),
        "got a DTensor": lambda: optimizer([{"params": list(ours.linear.parameters())}, {"params": ours.table.weight}]),
        "] got a DTensor": lambda: optimizer(ours.linear.parameters()).add_param_group({"params": ours.table.weight}),
    }
    grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    columns = partial(parallelize_module, device_mesh=grid["tp"], parallelize_plan={"0": ColwiseParallel()})
    data = torch_init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    refused |= {
        "Use shardwise.fully_shard, which does": lambda: fully_shard(
            columns(nn.Sequential(nn.Linear(4, 4))), mesh=data
        ),
        "or use shardwise.fully_shard(model, mesh=...)": lambda: DistributedDataParallel(
            columns(nn.Sequential(nn.Linear(4, 4)))
        ),
        "[replicate] weight of Linear is a DTensor": lambda: replicate_by_buckets(
            columns(nn.Sequential(nn.Linear(4, 4))), process_group=grid.get_group("tp")
        ),
        "weight of FSDPLinear is fully sharded on": lambda: DistributedDataParallel(
            sw.fully_shard(nn.Linear(4, 4), mesh=grid["tp"]), process_group=grid.get_group("dp")
        ),
        "which has the ranks": lambda: replicate(columns(nn.Sequential(nn.Linear(4, 4))), mesh=grid["tp"]),
    }
    for words, call in refused.items():
        try:
            call()
        except TypeError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"no error: {words}")

    ids = torch.tensor([3, 3, 9, 0, 1, 5, 3, 0])
    dense(ids).square().sum().backward()
    fully_shard(ours, mesh=theirs, ignored_params={ours.table.weight})
    ours(sw.distribute_tensor(ids, mesh, [Shard(0)])).square().sum().backward()
    torch.testing.assert_close(ours.table.weight.grad.full_tensor(), dense.table.weight.grad)
    torch.testing.assert_close(ours.linear.weight.grad.full_tensor() * 4, dense.linear.weight.grad)  # a mean over ranks
    x = torch.rand(4, 4)
    beside = columns(nn.Sequential(nn.Linear(4, 4)))
    expected = beside(x).detach()
    torch.testing.assert_close(sw.fully_shard(beside, mesh=grid["dp"])(x).detach(), expected)
    dist.destroy_process_group()


def replicas_of_tensor_parallel_modules(folder):
    """DistributedDataParallel and both forms of replicate() train as one rank does on all rows. Ranks save and load whole DTensors."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    data = torch_init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    batches = torch.rand(3, 8, 6, generator=torch.Generator().manual_seed(1))

    class Checkpointed(nn.Sequential):
        def forward(self, x):
            for each in self:
                x = checkpoint_of(each, x, use_reentrant=False)
            return x

    def made():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 5))
        return Checkpointed(*layers) if is_checkpointed else layers

    def train(model, part, no_sync=nullcontext):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, batch in enumerate(batches):
            with no_sync() if step == 1 else nullcontext():
                model(part(batch)).square().mean().backward()
            if step != 1:  # and one step of two batches
                optimizer.step()
                optimizer.zero_grad()

    is_checkpointed = False
    dense = made()
    train(dense, lambda batch: batch)
    of_dp = grid.get_group("dp")
    ways = {
        "of a group": lambda model: DistributedDataParallel(model, process_group=of_dp),
        "checkpointed": lambda model: DistributedDataParallel(model, process_group=of_dp),
        "of a mesh": lambda model: DistributedDataParallel(model, device_mesh=data, gradient_as_bucket_view=True),
        "replicate of a group": lambda model: replicate_by_buckets(model, process_group=of_dp),
        "replicate of a mesh": lambda model: replicate_by_buckets(model, device_mesh=data),
        "replicate by fully_shard": lambda model: replicate(model, mesh=data),
        "replicate by fully_shard on our mesh": lambda model: replicate(model, mesh=grid["dp"]),
    }
    for name, wrapped in ways.items():
        is_checkpointed = name == "checkpointed"
        model = made()
        parallelize_module(model, grid["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        whole = wrapped(model)
        train(whole, lambda batch: batch.chunk(2)[dist.get_rank() // 2], getattr(whole, "no_sync", nullcontext))
        torch.testing.assert_close(whole(batches[0]), dense(batches[0]), msg=lambda text, name=name: f"{name}: {text}")
        assert not isinstance(model[0].weight, sw.DTensor), name
        if name.startswith("replicate by"):
            continue  # its states are torch's DTensors
        states = {key: value.clone() for key, value in model.state_dict().items()}
        for key, expected in dense.state_dict().items():
            given = states[key].full_tensor() if isinstance(states[key], sw.DTensor) else states[key]
            torch.testing.assert_close(given, expected, msg=lambda text, name=name: f"{name}: {text}")
        model.load_state_dict({key: torch.zeros_like(value) for key, value in states.items()})
        assert all(not each.any() for each in model.parameters()), name
        model.load_state_dict(states)
        torch.testing.assert_close(whole(batches[0]), dense(batches[0]))
        assert isinstance(states["0.weight"], sw.DTensor) and states["2.weight"].placements == (Shard(1),)
    dist.destroy_process_group()


def fully_sharded(folder):
    """Four processes train as one does on all rows: large parts, which travel alone, and small ones; replicas; checkpoints."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(300, 500), nn.Tanh(), nn.Linear(500, 301), nn.Tanh(), nn.Linear(301, 3))
    rows = torch.rand(3, 8, 300)

    def train(model, part):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in rows:
            optimizer.zero_grad()
            model(part(batch)).square().mean().backward()
            optimizer.step()

    started = copy.deepcopy(dense)
    train(dense, lambda batch: batch)
    line = sw.init_device_mesh("cpu", (4,))
    for mesh in (line, sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))):
        model = copy.deepcopy(started)
        for layer in (model[0], model[2], model):
            sw.fully_shard(layer, mesh=mesh)
        train(model, lambda batch: batch.chunk(4)[dist.get_rank()])
        for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(ours.full_tensor(), theirs.detach(), rtol=1e-4, atol=1e-5)

    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    other = sw.fully_shard(copy.deepcopy(started), mesh=line)
    state = other.state_dict()
    dcp.load({"model": state}, checkpoint_id=folder)
    other.load_state_dict(state)
    torch.testing.assert_close(other(rows[0]), model(rows[0]))
    dist.destroy_process_group()


def waits(folder):
    """A rank that waits for others says so; one that has the value waits for nobody."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = sw.init_device_mesh("cpu", (4,))
    loss = sw.distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]).sum()
    known = sw.distribute_tensor(torch.tensor(28.0), mesh)
    dist.barrier()
    if dist.get_rank() == 0:
        assert known.item() == 28 and float(known) == 28
    else:
        time.sleep(3)
    assert loss.item() == 28
    dist.destroy_process_group()


def mixed_pieces(folder):
    """Where the placements say every piece, a rank may hand in a plain tensor and others wrappers."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    mesh, rank = sw.init_device_mesh("cpu", (4,)), dist.get_rank()
    rows = [(0, 2), (2, 5), (5, 5), (5, 8)]
    named = sw.EnumerableShard([sw.ShardMetadata((a, 0), (b - a, 4), i) for i, (a, b) in enumerate(rows) if a < b])
    begin, end = rows[rank]
    piece = torch.arange(32.0, dtype=torch.float64).view(8, 4)[begin:end].clone()
    for placement in (named, Shard(0, sizes=[2, 3, 0, 3])):
        local = torch.empty(0, 4, dtype=torch.float64) if rank == 2 else sw.LocalShardsWrapper([piece], [(begin, 0)])
        tensor = sw.DTensor.from_local(local, mesh, [placement], shape=(8, 4), stride=(4, 1))
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor.full_tensor(), torch.arange(32.0, dtype=torch.float64).view(8, 4))
    dist.destroy_process_group()


def random_numbers(folder):
    """Alike on every rank, and torch.manual_seed starts them anew."""
    mesh = sw.init_device_mesh("cpu", (4,))
    draws = []
    for placements in ([Shard(0)], [Shard(1)], [Replicate()]):
        torch.manual_seed(5)
        torch.rand(3)
        drawn = [sw.rand(9, 6, device_mesh=mesh, placements=placements) for _ in range(2)]
        drawn.append(torch.nn.functional.dropout(drawn[0], 0.5))
        drawn.append(torch.nn.init.trunc_normal_(torch.empty_like(drawn[0])))
        draws.append([tensor.full_tensor() for tensor in drawn])
    assert all(torch.equal(a, b) for draw in draws for a, b in zip(draw, draws[0], strict=True))
    assert not torch.equal(*draws[0][:2])
    dist.destroy_process_group()


def checkpoint(folder):
    """Saved under one layout by four ranks, loaded under others."""
    mesh = sw.init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    saved = {"table": sw.rand(9, 6, device_mesh=mesh, placements=[Shard(0, [1, 0, 5, 3])]), "steps": 3}
    dcp.save(saved, checkpoint_id=folder)
    for other, placements in [
        (mesh, [Shard(1)]),
        (mesh, [Replicate()]),
        (sw.init_device_mesh("cpu", (2, 2)), [Shard(0), Shard(0)]),
    ]:
        loaded = {"table": sw.zeros(9, 6, device_mesh=other, placements=placements), "steps": 0}
        dcp.load(loaded, checkpoint_id=folder)
        assert torch.equal(loaded["table"].full_tensor(), saved["table"].full_tensor()) and loaded["steps"] == 3
    dist.destroy_process_group()


def training(folder):
    """Three steps of a sharded MLP are three steps of the dense one; checkpointing and GradScaler see all ranks."""
    mesh = sw.init_device_mesh("cpu", (4,))
    placements = {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1)}

    def partition(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            placement = placements.get(f"{name}.{key}", Replicate())
            module.register_parameter(key, nn.Parameter(sw.distribute_tensor(parameter.detach(), mesh, [placement])))

    def train(model, wrap):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            model(wrap(torch.linspace(-1, 1 + step, 15, dtype=torch.float64).view(5, 3))).square().sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2)).double()
    model = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2)).double()
    model.load_state_dict(dense.state_dict())
    sw.distribute_module(model, mesh, partition)
    sharded = train(model, lambda x: sw.distribute_tensor(x, mesh, [Replicate()]))
    for ours, theirs in zip(sharded, train(dense, lambda x: x), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs)

    for use_reentrant in (False, True):  # what a checkpoint recomputes draws the same numbers
        x = sw.ones(8, 4, device_mesh=mesh, placements=[Shard(0)], requires_grad=True)
        out = checkpoint_of(lambda y: nn.functional.dropout(y, 0.5) * y, x, use_reentrant=use_reentrant)
        out.sum().backward()
        assert torch.equal(x.grad.full_tensor(), 2 * out.detach().full_tensor())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(sw.ones(2, 3, dtype=torch.float64, device_mesh=mesh)).sum()).backward()
    if dist.get_rank() == 2:
        model[0].weight.grad.to_local().fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    for ours, before in zip(model.parameters(), sharded, strict=True):
        assert torch.equal(ours.to_local(), before.to_local())
    dist.destroy_process_group()


if __name__ == "__main__":
    part = sys.argv[1]
    globals()[part](sys.argv[2])
    sys.stdout.write(f"{part}-{os.environ['RANK']}\n")
