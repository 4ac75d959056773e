"""Run by tests of local classes, on ranks that are processes: parts of it by name, in a folder."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor
from scaled import rows, scaled
from torch.distributed.checkpoint.api import CheckpointException
from torchrun import run_parts

import shardwise as sw
from shardwise.checkpoint import FileSystemReader, FileSystemWriter, inner_tensors

# Under compat by torch's names.
names = torch.distributed.tensor if torch.distributed.tensor.DTensor is sw.DTensor else sw
Replicate, Shard, distribute_tensor = names.Replicate, names.Shard, names.distribute_tensor


def checkpoints(folder):
    mesh, folder = mesh_of(), Path(folder)
    every = [[Shard(0)], [Shard(0, sizes=[0, 6, 0])], [Shard(0, sizes=[2, 0, 4])], [Shard(1)], [Replicate()]]
    whole = rows(6, block=2)
    for i, source in enumerate(every):
        state = {"layer": {"weight": distribute_tensor(whole, mesh, source)}, "step": torch.tensor(i)}
        path = str(folder / str(i))
        dcp.save(inner_tensors(state), storage_writer=FileSystemWriter(path))
        for target in every:
            empty = rows(6, block=2)
            for name in empty.__tensor_flatten__()[0]:
                getattr(empty, name).zero_()
            loaded = {"layer": {"weight": distribute_tensor(empty, mesh, target)}, "step": torch.tensor(-1)}
            dcp.load(inner_tensors(loaded), storage_reader=FileSystemReader(path))
            weight = loaded["layer"]["weight"]
            assert weight.placements == tuple(target) and loaded["step"] == i
            assert torch.equal(weight.full_tensor().values(), whole.values()), (source, target)
    other = {"layer": {"weight": distribute_tensor(rows(6), mesh, [Shard(0)])}, "step": torch.tensor(-1)}
    try:
        dcp.load(inner_tensors(other), checkpoint_id=path)  # of blocks of one row
    except CheckpointException as error:
        assert "context=1" in str(error), error
    else:
        raise AssertionError("another context was loaded")


def moves(folder):
    mesh = mesh_of()
    whole = scaled(7)
    for source in ([Shard(0)], [Shard(1)], [Shard(0, sizes=[0, 7, 0])], [Replicate()]):
        x = distribute_tensor(whole, mesh, source)
        assert torch.equal(x.full_tensor().values(), whole.values())
        y = x.redistribute(placements=[Shard(1, sizes=[3, 0, 1])])
        begin, n = [(0, 3), (3, 0), (3, 1)][dist.get_rank()]
        assert torch.equal(y.to_local().values(), whole.values().narrow(1, begin, n))


def compiled(folder):
    """Graphs give what eager programs give, and so do their backwards."""
    mesh = mesh_of()
    for placement in ([Shard(0)], [Replicate()]):
        torch._dynamo.reset()
        weight = distribute_tensor(scaled(6), mesh, placement)
        x = distribute_tensor(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), mesh, [Replicate()])

        def layer(x, weight):
            return torch.relu(torch.mm(x, weight * 2)) + 1

        results = []
        for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
            own = x.detach().requires_grad_()
            y = run(own, weight)
            y.sum().backward()
            results.append((y.full_tensor(), own.grad.full_tensor()))
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(results[0][0], torch.relu(x.full_tensor() @ scaled(6).values() * 2) + 1)


def compiled_moves(folder):
    """A move of objects is no part of a graph: it runs as it is written."""
    mesh = mesh_of()
    torch._dynamo.reset()
    weight = distribute_tensor(scaled(6), mesh, [Shard(0)])

    def moved(weight):
        return weight.redistribute(placements=[Shard(1)]) * 2 + 1

    expected = moved(weight)
    y = torch.compile(moved, backend="aot_eager")(weight)
    assert y.placements == expected.placements == (Shard(1),)
    torch.testing.assert_close(y.full_tensor(), scaled(6).values() * 2 + 1)


def plain_beside(folder):
    """A rank with a plain tensor does not know how the others move: the check of calls names it. Run alone: it reads the environment once."""
    os.environ["SHARDWISE_CHECK"] = "1"
    mesh = mesh_of()
    local = scaled(4) if dist.get_rank() == 0 else torch.empty(0, 4)
    x = names.DTensor.from_local(local, mesh, [Shard(0, sizes=[4, 0])])
    torch.testing.assert_close((x * 2).full_tensor(), scaled(4).values() * 2)
    try:
        x.full_tensor()
    except Exception as error:
        assert "[check] rank 0 is about to agree" in str(error), error
    else:
        raise AssertionError("nobody noticed")


def mesh_of():
    return names.init_device_mesh("cpu", (dist.get_world_size(),))


if __name__ == "__main__":
    run_parts({name: part for name, part in globals().items() if callable(part)})
