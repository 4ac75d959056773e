"""The moves that benchmarks/redistribute times, one per line, with an implementation by hand if that is simple.

A move names its mesh and marks its placements: a number is Shard of that dim, None is Replicate(), "P" is Partial().
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist

N_RANKS = 4
SHAPES = ((4096, 1024), (4097, 1023))


@dataclass(frozen=True)
class Move:
    mesh: tuple[int, ...]
    source: tuple[object, ...]
    target: tuple[object, ...]
    by_hand: Callable[..., object] | None = None

    def label(self, shape):
        return f"{'x'.join(map(str, shape))} on {'x'.join(map(str, self.mesh))}: {text(self.source)} -> {text(self.target)}"

    def is_partial(self):
        return "P" in self.source


def text(marks):
    words = ["P" if mark == "P" else "R" if mark is None else f"S{mark}" for mark in marks]
    return words[0] if len(words) == 1 else f"[{','.join(words)}]"


def lengths(total, mesh):
    """The sizes of nested torch.chunk splits: 10 in 4 parts is 3,3,3,1."""
    pieces = [total]
    for n_parts in mesh:
        pieces = [part for piece in pieces for part in chunk(piece, n_parts)]
    return pieces


def chunk(length, n_parts):
    step = -(-length // n_parts)
    ends = [min(step * i, length) for i in range(n_parts + 1)]
    return [end - begin for begin, end in pairwise(ends)]


# Each takes (local, shape, move) and gives a call without arguments; what comes before the call is not timed.


def all_to_all(local, shape, move):
    """S0 -> S1: the columns for each rank are packed beforehand, and received in place."""
    rows, columns = lengths(shape[0], move.mesh), lengths(shape[1], move.mesh)
    own_rows, own_columns = rows[dist.get_rank()], columns[dist.get_rank()]
    packed = torch.cat([part.reshape(-1) for part in local.split(columns, dim=1)])
    result = local.new_empty(shape[0], own_columns)
    sent, received = [own_rows * n for n in columns], [n * own_columns for n in rows]

    def call():
        dist.all_to_all_single(result.view(-1), packed, received, sent)
        return result

    return call


def all_gather(local, shape, move):
    """S0 -> R: the last pieces are padded beforehand."""
    most = lengths(shape[0], move.mesh)[0]
    padded = local.new_zeros(most, shape[1])
    padded[: local.shape[0]] = local
    result = local.new_empty(most * N_RANKS, shape[1])
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the newer name, where torch has it

    def call():
        gather(result, padded)
        return result[: shape[0]]

    return call


def slice_rows(local, shape, move):
    """R -> S0."""
    rows = lengths(shape[0], move.mesh)
    return lambda: local.split(rows)[dist.get_rank()].clone()


def all_reduce(local, shape, move):
    """P -> R: in a copy, because the input must not change."""

    def call():
        result = local.clone()
        dist.all_reduce(result)
        return result

    return call


def reduce_scatter(local, shape, move):
    """P -> S0: the blocks of rows are sent to their owners, which add them up."""
    rows = lengths(shape[0], move.mesh)
    own = rows[dist.get_rank()]
    arrived = local.new_empty(N_RANKS, own, shape[1])
    sent, received = [n * shape[1] for n in rows], [own * shape[1]] * N_RANKS

    def call():
        dist.all_to_all_single(arrived.view(-1), local.view(-1), received, sent)
        return arrived.sum(0)

    return call


def transpose_ranks(local, shape, move):
    """[S0,S1] -> [S1,S0] and [S0,R] -> [R,S0] on 2x2: ranks 1 and 2 exchange their pieces."""
    peer = {0: None, 1: 2, 2: 1, 3: None}[dist.get_rank()]
    rows = lengths(shape[0], (2,))[dist.get_rank() % 2]
    columns = lengths(shape[1], (2,))[dist.get_rank() // 2] if move.source[1] == 1 else shape[1]
    result = local.new_empty(rows, columns)

    def call():
        if peer is None:
            return local
        work = dist.isend(local, peer), dist.irecv(result, peer)
        for each in work:
            each.wait()
        return result

    return call


MOVES = [
    # mesh, from, to, by hand
    Move((4,), (0,), (1,), all_to_all),
    Move((4,), (0,), (None,), all_gather),
    Move((4,), (None,), (0,), slice_rows),
    Move((4,), ("P",), (None,), all_reduce),
    Move((4,), ("P",), (0,), reduce_scatter),
    Move((2, 2), (0, 1), (1, 0), transpose_ranks),
    Move((2, 2), (0, 0), (1, 1), all_to_all),
    Move((2, 2), (0, None), (None, 0), transpose_ranks),
]
