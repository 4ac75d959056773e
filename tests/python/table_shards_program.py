"""Run by test_local_subclass.py on four ranks, as a program for torch.distributed.tensor or, with the argument "ours", for Shardwise:
TorchRec's three ways to shard a table, with a program's own class of local shards."""

import sys

import torch
import torch.distributed as dist
from test_local_subclass import TableShards

if sys.argv[1:] == ["ours"]:
    from shardwise import DeviceMesh, DTensor, Replicate, Shard, init_device_mesh
    from shardwise.debug import visualize_sharding
else:
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, init_device_mesh
    from torch.distributed.tensor.debug import visualize_sharding

WHOLE = {"run_check": False, "shape": torch.Size((8, 16)), "stride": (16, 1)}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (4,))

    given = TableShards([torch.randn(2, 16)], [torch.Size((rank * 2, 16))])
    table = DTensor.from_local(given, mesh, [Shard(0)], run_check=False)
    visualize_sharding(table, header="even rows")
    assert table.to_local() is given and table.shape == (8, 16)

    given = TableShards([torch.randn(1 + rank % 2 * 2, 16)], [torch.Size((rank // 2 * 4 + rank % 2, 16))])
    table = DTensor.from_local(given, mesh, [Shard(0)], **WHOLE)
    visualize_sharding(table, header="uneven rows")
    assert table.to_local() is given and table.shape == (8, 16) and table.stride() == (16, 1)

    for place in range(4):
        own = torch.randn(8, 16) if rank == place else torch.empty(0)
        given = TableShards([own], [torch.Size((0, 0))]) if rank == place else own
        table = DTensor.from_local(given, DeviceMesh("cpu", torch.tensor([place])), [Replicate()], **WHOLE)
        visualize_sharding(table, header=f"table {place}")
        assert table.to_local() is given if rank == place else table.to_local().numel() == 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
