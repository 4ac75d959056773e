"""Operands of an operator in place may overlap what it writes: where torch refuses them, they are read before the write.

Which pieces of a DTensor overlap differs between ranks, so that a refusal would be one of some ranks alone, and the others would wait for them.
"""

import pytest
import torch

import shardwise as sw
from shardwise import EnumerableShard, Replicate, Shard, ShardMetadata
from shardwise.testing import run_ranks

N_RANKS = 3
LAYOUTS = [Replicate(), Shard(0), Shard(-1), Shard(0, sizes=[3, 1, 1])]
# The written view, and the operand that shares its memory.
PAIRS = {
    "shifted": lambda x: (x[1:], x[:-1]),
    "its first row": lambda x: (x, x[0]),
    "a row of one of its views": lambda x: (x, x.unbind(-2)[0]) if x.dim() > 1 else (x, x[:1]),
    "its transpose": lambda x: (x, x.t()) if x.shape == (5, 5) else (x, x),
    "itself without dims of one": lambda x: (x, x[None].squeeze(0)),
    "one element": lambda x: (x, x.flatten()[2] if x.is_contiguous() else x[2, 0]),
}
WRITES = {
    "add_": lambda x, y: x.add_(y),
    "copy_": lambda x, y: x.copy_(y),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "masked_fill_": lambda x, y: x.masked_fill_(x > 0, y) if y.dim() == 0 else x.sub_(y),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("shape", [(5,), (5, 5), (5, 2)], ids=str)
def test_operands_are_read_before_their_memory_is_written(shape, layout):
    dense = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (N_RANKS,))
        for pair in PAIRS.values():
            for write in WRITES.values():
                expected = dense.clone()
                written, operand = pair(expected)
                write(written, operand.clone())
                ours = sw.distribute_tensor(dense, mesh, [layout])
                write(*pair(ours))
                assert torch.equal(ours.full_tensor(), expected)

    run_ranks(N_RANKS, check)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_columns_that_overlap_are_taken_as_torch_takes_them(layout):
    """torch reads and writes them in any order. On a rank with one row they are contiguous, and it would refuse them."""

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (N_RANKS,))
        ours = sw.distribute_tensor(torch.ones(5, 5), mesh, [layout])
        ours[:, 1:].add_(ours[:, :-1])
        assert torch.equal(ours.full_tensor()[:, :2], torch.tensor([1.0, 2.0]).expand(5, 2))

    run_ranks(N_RANKS, check)


def test_a_transposed_tensor_is_written_with_a_row_of_its_own():
    """The row's piece is all of the memory of the one rank that has a single column."""

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (N_RANKS,))
        base = sw.distribute_tensor(torch.arange(30.0).view(5, 6), mesh, [Replicate()])
        moved = (base.mT.redistribute(placements=[Shard(1)]) * 2).requires_grad_()
        written = moved * 1
        written.copy_(written.unbind(-2)[0])
        written.sum().backward()
        assert torch.equal(written.full_tensor(), (torch.arange(0.0, 30, 6) * 2).expand(6, 5))

    run_ranks(N_RANKS, check)


def grid_of(n_ranks):
    """Boxes of [2, 2], of which each rank has several."""
    corners = [(row, column) for row in (0, 2, 4) for column in (0, 2, 4)]
    return EnumerableShard([ShardMetadata(corner, (2, 2), i % n_ranks) for i, corner in enumerate(corners)])


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_pieces_are_read_before_any_piece_of_a_rank_is_written(write, n_ranks):
    """A kernel runs for one piece after the other, and a piece of the operand may be an earlier piece of the written tensor."""
    dense = torch.arange(36.0).view(6, 6)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        for of_operand in (torch.t, lambda x: x[:2].repeat(3, 1), lambda x: x[:, :2].repeat(1, 3), lambda x: x[:1]):
            expected = dense.clone()
            write(expected, of_operand(dense))
            ours = sw.distribute_tensor(dense, mesh, [grid_of(n_ranks)])
            write(ours, of_operand(ours))
            assert torch.equal(ours.full_tensor(), expected)

    run_ranks(n_ranks, check)


LIST_WRITES = {
    "_foreach_add_": lambda x, y: torch._foreach_add_([x], [y]),
    "_foreach_copy_": lambda x, y: torch._foreach_copy_([x], [y]),
    "two elements": lambda x, y: torch._foreach_add_([torch.zeros_like(x), x], [y.clone(), y]),
    "_foreach_addcmul_": lambda x, y: torch._foreach_addcmul_([x], [y], [y]),
}


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=repr)
@pytest.mark.parametrize("write", LIST_WRITES.values(), ids=LIST_WRITES.keys())
def test_elements_of_lists_that_overlap_are_refused_on_no_rank_alone(write, layout):
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (N_RANKS,))
        for _ in range(2):  # the second call would take the direct path
            ours = sw.distribute_tensor(torch.ones(5, 5), mesh, [layout])
            write(ours[:, 1:], ours[:, :-1])
            found = ours.full_tensor()
            assert torch.equal(found[:, 0], torch.ones(5)) and torch.equal(found[:, 1], found[:1, 1].expand(5))

    run_ranks(N_RANKS, check)
