"""Run by test_fused_optimizers.py under torchrun: fused_optimizer_program.py PARTS FOLDER, see run_parts(). Half of a training is saved
and goes on elsewhere: on other numbers of ranks, in other layouts."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torchrun import run_parts

import shardwise as sw
from shardwise import EnumerableShard, Replicate, Shard
from shardwise import ShardMetadata as Piece

MAKERS = {
    "row-wise Adagrad": lambda tables: sw.optim.FusedAdagrad(tables, lr=0.1, row_wise=True, weight_decay=0.1),
    "Adam": lambda tables: sw.optim.FusedAdam(tables, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
    "row-wise Adam": lambda tables: sw.optim.FusedAdam(tables, lr=0.1, row_wise=True),
    "LAMB": lambda tables: sw.optim.FusedLAMB(tables, lr=0.1, weight_decay=0.1),
    "row-wise LAMB": lambda tables: sw.optim.FusedLAMB(tables, lr=0.1, row_wise=True),
}


def layouts():
    """By the number of ranks: uneven rows, columns, pieces that split rows."""
    n_ranks = dist.get_world_size()
    last = n_ranks - 1
    pieces = [Piece((0, 0), (4, 4), last), Piece((0, 4), (4, 2), 0), Piece((4, 0), (7, 6), last)]
    return [Shard(0, sizes=[11, *[0] * last]), Shard(1), EnumerableShard(pieces)]


def dense_table():
    return torch.randn(11, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def trained(name, placement, steps, table=None, optimizer=None):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    if table is None:
        table = nn.Parameter(sw.distribute_tensor(dense_table(), mesh, [placement]))
        optimizer = MAKERS[name]([table])
    for step in steps:
        ids = torch.randint(0, 9, (12,), generator=torch.Generator().manual_seed(step))
        F.embedding(sw.distribute_tensor(ids, mesh, [Replicate()]), table).square().sum().backward()
    return table, optimizer


def state_of(table, optimizer):
    return {"table": table.detach(), "optimizer": optimizer.state_dict()}


def save(folder):
    for name in MAKERS:
        for i, placement in enumerate(layouts()):
            dcp.save(state_of(*trained(name, placement, range(2))), checkpoint_id=f"{folder}/{name} {i}")


def load(folder):
    for name in MAKERS:
        whole, _optimizer = trained(name, Shard(0), range(4))
        for i in range(3):
            table, optimizer = trained(name, layouts()[i - 1], ())
            state = state_of(table, optimizer)
            dcp.load(state, checkpoint_id=f"{folder}/{name} {i}")
            optimizer.load_state_dict(state["optimizer"])
            trained(name, None, range(2, 4), table, optimizer)
            torch.testing.assert_close(table.detach().full_tensor(), whole.detach().full_tensor(), rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    run_parts({"save": save, "load": load})
