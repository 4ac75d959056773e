"""Embedding tables as TorchRec shards them, converted to DTensors and back without a copy.

    $ torchrun --nproc-per-node 4 examples/torchrec_sharding.py -e row-wise-uneven
    [8, 16] as [Shard(0, sizes=[1, 3, 1, 3])] on 4 ranks (0-3), 512 bytes
        0                                                16
      0 ┌────────────────────────────────────────────────┐
        │                     rank 0                     │
        │                                                │
      1 ├────────────────────────────────────────────────┤
        │                                                │
        │                                                │
        │                     rank 1                     │
        │                                                │
        │                                                │
      4 ├────────────────────────────────────────────────┤
        │                     rank 2                     │
        │                                                │
      5 ├────────────────────────────────────────────────┤
        │                                                │
        │                                                │
        │                     rank 3                     │
        │                                                │
        │                                                │
      8 └────────────────────────────────────────────────┘
      rank  shape    offsets  bytes  share
         0  [1, 16]  [0, 0]      64  12.5%
         1  [3, 16]  [1, 0]     192  37.5%
         2  [1, 16]  [4, 0]      64  12.5%
         3  [3, 16]  [5, 0]     192  37.5%
      imbalance 1.50: ranks 1,3 hold 192 bytes, the mean is 128

    Every rank has its pieces back: same storage, same values, same sizes and offsets.

    $ torchrun --nproc-per-node 4 examples/torchrec_sharding.py -e column-wise
    [8, 16] as EnumerableShard of 5 pieces on 4 ranks (0-3), 512 bytes
        0               5            9         12       13        16
      0 ┌───────────────┬────────────┬─────────┬────────┬─────────┐
        │               │            │         │        │         │
        │               │            │         │        │         │
        │    rank 2     │   rank 0   │ rank 1  │ rank 2 │ rank 3  │
        │               │            │         │        │         │
        │               │            │         │        │         │
      8 └───────────────┴────────────┴─────────┴────────┴─────────┘
      rank  shape     offsets  bytes  share
         0  [8, 4]    [0, 5]     128  25.0%
         1  [8, 3]    [0, 9]      96  18.8%
         2  [8, 5]    [0, 0]     160  31.2%
            [8, 1]    [0, 12]     32   6.2%
            2 pieces             192  37.5%
         3  [8, 3]    [0, 13]     96  18.8%
      imbalance 1.50: rank 2 holds 192 bytes, the mean is 128

    Every rank has its pieces back: same storage, same values, same sizes and offsets.

Other values of -e: row-wise-even, grid-wise, table-wise. torchrec_sharding.cpp prints the same from C++.
"""

import argparse
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

import shardwise as sw
from shardwise import ShardMetadata as Piece

N_RANKS = 4
TABLE = torch.arange(8.0 * 16).reshape(8, 16)


def rows(n_rows: list[int]) -> list[Piece]:
    """A piece of whole rows on each rank. Its columns begin at 0."""
    ends = accumulate(n_rows)
    return [Piece((end - n, 0), (n, 16), rank) for rank, (n, end) in enumerate(zip(n_rows, ends, strict=True))]


PIECES = {
    "row-wise-even": rows([2, 2, 2, 2]),
    "row-wise-uneven": rows([1, 3, 1, 3]),
    "column-wise": [  # rank 2 comes first, and once more
        Piece((0, 0), (8, 5), 2),
        Piece((0, 5), (8, 4), 0),
        Piece((0, 9), (8, 3), 1),
        Piece((0, 12), (8, 1), 2),
        Piece((0, 13), (8, 3), 3),
    ],
    "grid-wise": [
        Piece((0, 0), (3, 10), 0),
        Piece((0, 10), (3, 6), 1),
        Piece((3, 0), (5, 10), 3),
        Piece((3, 10), (5, 6), 2),
    ],
}


def local_shards(table: Tensor, pieces: list[Piece]) -> sw.LocalShardsWrapper:
    """The local shards that TorchRec has on this rank: its pieces of `table` and their offsets."""
    own = [piece for piece in pieces if piece.rank == dist.get_rank()]
    boxes = [tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.sizes, strict=True)) for piece in own]
    return sw.LocalShardsWrapper(
        local_shards=[table[box].clone() for box in boxes],
        offsets=[piece.offsets for piece in own],
    )


def show(table: Tensor, pieces: list[Piece], mesh: sw.DeviceMesh, placement: sw.Placement) -> None:
    """Converts shards to a DTensor, prints its picture, and converts it back to the same shards."""
    shards = local_shards(table, pieces)
    dtensor = sw.DTensor.from_local(
        shards, mesh, [placement], run_check=False, shape=table.shape, stride=table.stride()
    )
    if dist.get_rank() == 0:
        sw.visualize_sharding(dtensor)

    assert dtensor.shape == table.shape and dtensor.stride() == table.stride()
    back = dtensor.to_local()
    assert isinstance(back, sw.LocalShardsWrapper)
    assert back.local_sizes() == shards.local_sizes() and back.local_offsets() == shards.local_offsets()
    for piece, original in zip(back.local_shards(), shards.local_shards(), strict=True):
        assert piece.data_ptr() == original.data_ptr() and torch.equal(piece, original)
    if mesh.get_coordinate() is not None:
        assert torch.equal(dtensor.full_tensor(), table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Embedding tables as TorchRec shards them, there and back.")
    parser.add_argument("-e", "--example", choices=[*PIECES, "table-wise"], default="row-wise-uneven")
    example = parser.parse_args().example
    dist.init_process_group("gloo")
    assert dist.get_world_size() == N_RANKS, (
        f"[torchrec_sharding] started with {dist.get_world_size()} ranks: use {N_RANKS}"
    )

    if example == "table-wise":  # table i is whole on rank i; the others hold nothing of it, and know its shape
        for owner in range(N_RANKS):
            table = TABLE[: 2 + 2 * owner]
            show(table, [Piece((0, 0), table.shape, owner)], sw.DeviceMesh("cpu", [owner]), sw.Replicate())
    else:
        pieces = PIECES[example]
        placement = sw.Shard(0) if example.startswith("row-wise") else sw.EnumerableShard(pieces)
        show(TABLE, pieces, sw.init_device_mesh("cpu", (N_RANKS,)), placement)

    dist.barrier()
    if dist.get_rank() == 0:
        print("Every rank has its pieces back: same storage, same values, same sizes and offsets.")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
