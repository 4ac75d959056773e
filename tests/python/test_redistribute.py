"""Moving a tensor from any layout to any other."""

import itertools

import pytest
import torch

import shardwise as sw
from shardwise import CommDebugMode, EnumerableShard, Partial, Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.testing import run_ranks

PIECES = [Piece((0, 0), (7, 1), 2), Piece((0, 1), (4, 4), 0), Piece((4, 1), (3, 4), 2)]

# n_ranks, mesh shape, layouts of a 7x5 tensor on it
MESHES = [
    (
        3,
        (3,),
        [
            [Shard(0)],
            [Shard(1)],
            [Shard(0, [5, 0, 2])],
            [Replicate()],
            [Partial()],
            [Partial("max")],
            [EnumerableShard(PIECES)],
        ],
    ),
    (
        4,
        (2, 2),
        [
            [Shard(0), Shard(1)],
            [Shard(0), Shard(0)],
            [Shard(1), Shard(0, [6, 1])],
            [Replicate(), Shard(0)],
            [Partial(), Replicate()],
            [Partial(), Shard(1)],
        ],
    ),
]
PAIRS = [(n, shape, a, b) for n, shape, layouts in MESHES for a, b in itertools.product(layouts, layouts)]


@pytest.mark.parametrize(("n_ranks", "shape", "source", "target"), PAIRS, ids=str)
def test_values_and_gradients_survive_any_move_there_and_back(n_ranks, shape, source, target):
    dense = torch.arange(35.0, dtype=torch.float64).view(7, 5)
    weights = torch.arange(35.0, dtype=torch.float64).view(7, 5).flip(0) - 3

    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        tensor = sw.distribute_tensor(dense, mesh, source).requires_grad_()
        moved = tensor.redistribute(placements=target)
        assert type(moved) is sw.DTensor and list(moved.placements) == target
        assert torch.equal(moved.full_tensor(), dense)
        back = moved.redistribute(mesh, source)
        assert torch.equal(back.full_tensor(), dense)
        (back.full_tensor() * weights).sum().backward()
        assert torch.equal(tensor.grad.full_tensor(), weights)

    run_ranks(n_ranks, body)


# source, target, bytes that rank 0 of 4 receives for 8 float32
@pytest.mark.parametrize(
    ("source", "target", "n_bytes"),
    [
        (Shard(0), Shard(0), 0),
        (Replicate(), Shard(0), 0),
        (Shard(0), Replicate(), 24),
        (Shard(0), Shard(0, [0, 0, 0, 8]), 0),
        (Shard(0), Shard(0, [4, 4, 0, 0]), 8),
        (Partial(), Shard(0), 24),
    ],
    ids=str,
)
def test_a_rank_receives_what_it_does_not_hold_and_no_more(source, target, n_bytes):
    def body(rank):
        tensor = sw.ones(8, device_mesh=sw.init_device_mesh("cpu", (4,)), placements=[Replicate()])
        tensor = tensor.redistribute(placements=[source])
        with CommDebugMode() as comm:
            tensor.redistribute(placements=[target])
        return comm.bytes_received()

    assert run_ranks(4, body)[0] == n_bytes


def test_a_move_to_the_same_placements_shares_memory():
    def body(rank):
        tensor = sw.ones(8, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        assert tensor.redistribute(placements=[Shard(-1)]).to_local().data_ptr() == tensor.to_local().data_ptr()

    run_ranks(2, body)


def test_async_op_is_taken():
    def body(rank):
        tensor = sw.ones(8, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        assert torch.equal(tensor.redistribute(placements=[Replicate()], async_op=True).to_local(), torch.ones(8))

    run_ranks(2, body)
