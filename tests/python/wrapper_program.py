"""Run by test_checkpoint.py under torchrun: wrapper_program.py PARTS FOLDER, see run_parts()."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrun import run_parts

import shardwise as sw
from shardwise import DTensor, LocalShardsWrapper, Replicate, Shard
from shardwise.sharded_tensor import from_sharded_tensor, to_sharded_tensor

TABLE = torch.arange(8.0 * 16).reshape(8, 16)
SMALL = torch.arange(3.0 * 5).reshape(3, 5)


def wrapper_of(table, boxes):
    slices = [tuple(slice(o, o + n) for o, n in zip(*box, strict=True)) for box in boxes]
    return LocalShardsWrapper(
        local_shards=[table[part].clone() for part in slices], offsets=[offsets for offsets, _ in boxes]
    )


def state(fill, rows_of, columns_of):
    """A row-wise table, a column-wise one with several pieces on rank 0, and a table on the last rank alone."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    mesh = sw.init_device_mesh("cpu", (n_ranks,))
    last = sw.DeviceMesh("cpu", [n_ranks - 1])
    table, small = fill(TABLE), fill(SMALL)
    whole = [((0, 0), SMALL.shape)] if rank == n_ranks - 1 else []
    return {
        "rows": DTensor.from_local(wrapper_of(table, rows_of[rank]), mesh, [Shard(0)]),
        "columns": DTensor.from_local(wrapper_of(table, columns_of[rank]), mesh, [Shard(1)]),
        "small": DTensor.from_local(
            wrapper_of(small, whole), last, [Replicate()], shape=SMALL.shape, stride=SMALL.stride()
        ),
        "plain": sw.distribute_tensor(table, mesh, [Shard(1)]),
    }


def rows(begin, end):
    return [((begin, 0), (end - begin, 16))]


def columns(*ranges):
    return [((0, begin), (8, end - begin)) for begin, end in ranges]


def save(folder):
    """Four ranks: rows 1, 3, 1, 3 and columns in any order."""
    by_rows = [rows(0, 1), rows(1, 4), rows(4, 5), rows(5, 8)]
    dcp.save(
        state(torch.clone, by_rows, [columns((12, 13), (0, 5)), columns((5, 9)), columns((9, 12)), columns((13, 16))]),
        checkpoint_id=folder,
    )


def load(folder):
    """Two ranks with other shards."""
    loaded = state(torch.zeros_like, [rows(0, 3), rows(3, 8)], [columns((7, 16)), columns((0, 2), (2, 7))])
    dcp.load(loaded, checkpoint_id=folder)
    for name in ("rows", "columns", "plain"):
        assert torch.equal(loaded[name].full_tensor(), TABLE), name
    assert isinstance(loaded["rows"].to_local(), LocalShardsWrapper)
    if dist.get_rank() == 1:
        assert torch.equal(loaded["small"].to_local().shards[0], SMALL)


def sharded_tensor(folder):
    """There and back: same pieces, same storage; torch's own checkpoints know it, too."""
    rank = dist.get_rank()
    by_rows = [rows(0, 1), rows(1, 4), rows(4, 5), rows(5, 8)]
    by_columns = [columns((0, 4)), columns((4, 8)), columns((8, 12)), columns((12, 16))]
    tensor = state(torch.clone, by_rows, by_columns)["rows"]
    sharded = to_sharded_tensor(tensor)
    assert sharded.size() == TABLE.shape and len(sharded.metadata().shards_metadata) == 4
    assert sharded.local_shards()[0].metadata.shard_offsets == [by_rows[rank][0][0][0], 0]
    again = to_sharded_tensor(tensor.requires_grad_())
    assert again.local_shards()[0].tensor.data_ptr() == sharded.local_shards()[0].tensor.data_ptr()
    back = from_sharded_tensor(sharded)
    assert back.placements == tensor.placements
    assert back.to_local().shards[0].data_ptr() == tensor.to_local().shards[0].data_ptr()


if __name__ == "__main__":
    run_parts(globals())
