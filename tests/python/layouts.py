"""Layout cases that tests go through: every kind of placement."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import shardwise as sw
from shardwise import EnumerableShard, Partial, Placement, RaggedShard, Replicate, Shard
from shardwise import ShardMetadata as Piece


@dataclass(frozen=True)
class Case:
    name: str
    n_ranks: int
    ranks: object  # nested lists, as DeviceMesh takes them
    shape: tuple[int, ...]
    placements: Sequence[Placement]

    def mesh(self) -> sw.DeviceMesh:
        return sw.DeviceMesh("cpu", self.ranks)

    def dense(self) -> torch.Tensor:
        """Integers in float64: sums are exact in any order."""
        return torch.arange(torch.Size(self.shape).numel(), dtype=torch.float64).view(self.shape) % 23 - 5

    def distributed(self) -> sw.DTensor:
        return sw.distribute_tensor(self.dense(), self.mesh(), self.placements)


COLUMNS = [Piece((0, 0), (5, 2), 2), Piece((0, 2), (5, 3), 0), Piece((0, 5), (5, 1), 2)]
GRID = [Piece((0, 0), (3, 4), 1), Piece((0, 4), (3, 2), 0), Piece((3, 0), (2, 6), 1)]

CASES = [
    # name, ranks of the program, mesh, tensor, placements
    Case("one rank", 1, [0], (5, 6), [Shard(0)]),
    Case("even", 2, [0, 1], (4, 6), [Shard(0)]),
    Case("chunked", 4, [0, 1, 2, 3], (10, 3), [Shard(0)]),
    Case("columns", 3, [0, 1, 2], (4, 7), [Shard(1)]),
    Case("explicit sizes", 4, [0, 1, 2, 3], (8, 2), [Shard(0, [1, 3, 0, 4])]),
    Case("fewer rows than ranks", 3, [0, 1, 2], (2, 5), [Shard(0)]),
    Case("zero rows", 3, [0, 1, 2], (0, 5), [Shard(0)]),
    Case("0-D", 2, [0, 1], (), [Replicate()]),
    Case("replicated", 3, [0, 1, 2], (5, 6), [Replicate()]),
    Case("sum", 3, [0, 1, 2], (5, 6), [Partial()]),
    Case("avg", 2, [0, 1], (5, 6), [Partial("avg")]),
    Case("max", 3, [0, 1, 2], (5, 6), [Partial("max")]),
    Case("reversed ranks", 3, [2, 1, 0], (7, 2), [Shard(0)]),
    Case("2-D mesh", 4, [[0, 1], [2, 3]], (5, 7), [Shard(0), Shard(1)]),
    Case("nested", 4, [[0, 1], [2, 3]], (7, 3), [Shard(0), Shard(0)]),
    Case("nested, other order", 4, [[3, 1], [0, 2]], (7, 3), [Shard(0), Shard(0)]),
    Case("sharded and summed", 4, [[0, 1], [2, 3]], (5, 7), [Shard(1), Partial()]),
    Case("3-D mesh", 4, [[[0, 1]], [[2, 3]]], (5, 6, 3), [Shard(2), Replicate(), Shard(0)]),
    Case("submesh", 4, [1, 3], (5, 6), [Shard(0)]),
    Case("one of three ranks", 3, [1], (5, 6), [Replicate()]),
    Case("columns, several a rank", 3, [0, 1, 2], (5, 6), [EnumerableShard(COLUMNS)]),
    Case("grid", 3, [0, 1, 2], (5, 6), [EnumerableShard(GRID)]),
    Case("ranges", 4, [2, 0, 3, 1], (5, 6), [RaggedShard((0, 1), (2, 3, 0, 5))]),
    Case("ranges of rows", 3, [0, 1, 2], (5, 6), [RaggedShard((0,), (1, 0, 3))]),
    Case("ranges, replicated", 4, [[0, 1], [2, 3]], (3, 5, 2), [RaggedShard((0, 1), (2, 3)), Replicate()]),
    Case("ranges of rows that are sharded", 4, [[0, 1], [2, 3]], (5, 6), [RaggedShard((0, 1), (2, 3)), Shard(0)]),
]

by_name = {"argvalues": CASES, "ids": [case.name for case in CASES]}


# Tables of embeddings.
TABLE_SHAPE = (11, 6)
TABLE_GRID = [
    Piece((0, 0), (4, 4), 1),
    Piece((0, 4), (4, 2), 0),
    Piece((4, 0), (7, 2), 1),
    Piece((4, 2), (7, 4), 2),
]
TABLE_COLUMNS = [Piece((0, 0), (11, 2), 2), Piece((0, 2), (11, 3), 0), Piece((0, 5), (11, 1), 2)]

TABLES = [
    Case("one rank", 1, [0], TABLE_SHAPE, [Shard(0)]),
    Case("rows", 4, [0, 1, 2, 3], TABLE_SHAPE, [Shard(0)]),
    Case("uneven rows, one piece empty", 4, [2, 0, 3, 1], TABLE_SHAPE, [Shard(0, sizes=[1, 6, 0, 4])]),
    Case("one rank has all rows", 3, [0, 1, 2], TABLE_SHAPE, [Shard(0, sizes=[0, 11, 0])]),
    Case("columns", 3, [1, 2, 0], TABLE_SHAPE, [Shard(1)]),
    Case("uneven columns", 3, [0, 1, 2], TABLE_SHAPE, [Shard(1, sizes=[4, 0, 2])]),
    Case("replicated", 3, [0, 1, 2], TABLE_SHAPE, [Replicate()]),
    Case("rows and columns", 4, [[0, 1], [2, 3]], TABLE_SHAPE, [Shard(0), Shard(1)]),
    Case("nested rows", 4, [[3, 1], [0, 2]], TABLE_SHAPE, [Shard(0), Shard(0, sizes=[1, 5, 4, 1])]),
    Case("replicated rows", 4, [[0, 1], [2, 3]], TABLE_SHAPE, [Replicate(), Shard(0)]),
    Case("a rank outside", 4, [3, 1, 0], TABLE_SHAPE, [Shard(0)]),
    Case("boxes", 3, [0, 1, 2], TABLE_SHAPE, [EnumerableShard(TABLE_GRID)]),
    Case("columns by the piece", 3, [0, 1, 2], TABLE_SHAPE, [EnumerableShard(TABLE_COLUMNS)]),
    Case("ranges", 4, [0, 1, 2, 3], TABLE_SHAPE, [RaggedShard((0, 1), (2, 3, 0, 5))]),
    Case("nested columns", 4, [[0, 1], [2, 3]], TABLE_SHAPE, [Shard(1), Shard(1, sizes=[1, 2])]),
]
