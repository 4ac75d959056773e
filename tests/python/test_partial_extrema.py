"""Maxima and minima that stay Partial: the ranks' own extremes are reduced when they are read."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks


@pytest.mark.parametrize(("op", "name"), [(torch.maximum, "max"), (torch.minimum, "min")])
@pytest.mark.parametrize(
    ("left", "right", "passes"),
    [
        (Partial("max"), Partial("max"), "max"),
        (Partial("min"), Partial("min"), "min"),
        (Partial("max"), Replicate(), "max"),
        (Partial("min"), Replicate(), "min"),
        (Partial(), Partial(), None),
        (Partial("max"), Partial(), "max"),  # the sum is reduced
        (Partial(), Partial("min"), "min"),
        (Partial("min"), Shard(0, sizes=[0, 4, 1]), None),  # reduced to the shards
        (Partial("avg"), Replicate(), None),
    ],
    ids=repr,
)
def test_the_dense_result(op, name, left, right, passes):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        operands = []
        for seed, placement in enumerate((left, right)):
            generator = torch.Generator().manual_seed(seed + (10 * rank if placement.is_partial() else 0))
            whole = torch.randn(5, 2, generator=generator)  # torch's own generator is one for all threads
            if placement.is_partial():
                operands.append(sw.DTensor.from_local(whole, mesh, [placement]))
            else:
                operands.append(sw.distribute_tensor(whole, mesh, [placement], src_data_rank=None))
        with sw.CommDebugMode() as comm:
            result = op(*operands)
        assert (result.placements == (Partial(name),)) == (passes == name)
        assert comm.get_total_counts() == (Partial() in (left, right)) or passes != name
        torch.testing.assert_close(result.full_tensor(), op(*(operand.full_tensor() for operand in operands)))

    run_ranks(3, body)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize(
    ("shape", "placements"),
    [((3,), []), ((2, 2), [Shard(0, sizes=[1, 3])]), ((2, 2), [Shard(1, sizes=[0, 2])])],
    ids=repr,
)
def test_negatives_of_extremes_send_nothing(name, shape, placements):
    """-max(a, b) = min(-a, -b)."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        placed = [Partial(name), *placements]
        sizes = sw.distribute_tensor(torch.zeros(4, 2), mesh, [Replicate(), *placements]).to_local().shape
        local = (
            torch.randn(sizes, generator=torch.Generator().manual_seed(rank)) if sizes.numel() else torch.ones(sizes)
        )
        x = sw.DTensor.from_local(local, mesh, placed, shape=(4, 2)).requires_grad_()
        with sw.CommDebugMode() as comm:
            result = -x
        assert comm.get_total_counts() == 0
        assert result.placements == (Partial({"max": "min", "min": "max"}[name]), *x.placements[1:])
        torch.testing.assert_close(result.full_tensor(), -x.detach().full_tensor())
        result.sum().backward()
        assert (x.grad.full_tensor() == -1).all()

    run_ranks(torch.Size(shape).numel(), body)


@pytest.mark.parametrize("other", [[0.0, -torch.inf], [0.0, torch.inf], [1j, 2.0], 1j, -torch.inf], ids=str)
def test_what_is_added_to_an_extreme_may_be_infinite_or_complex(other):
    """Rank 1 has no rows, so that its own extremes are infinite."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = torch.tensor([[1.0, 2.0]])
        x = sw.distribute_tensor(whole, mesh, [Shard(0)])
        plain = torch.tensor(other) if isinstance(other, list) else other
        ours = sw.distribute_tensor(plain, mesh, [Replicate()]) if isinstance(other, list) else other
        for op in (torch.amax, torch.amin):
            assert torch.equal((op(x, 0) + ours).full_tensor(), op(whole, 0) + plain)
            assert torch.equal((op(x, 0) - ours).full_tensor(), op(whole, 0) - plain)

    run_ranks(2, body)


@pytest.mark.parametrize("op", [torch.amax, torch.amin, torch.max, torch.min])
def test_extremes_of_extremes_send_nothing(op):
    name = op.__name__.removeprefix("a")

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        local = torch.arange(6.0).view(3, 2) * (3, -4, 1, 1)[rank]
        for placements, shape in (([Partial(name), Shard(0)], (6, 2)), ([Partial(name), Partial(name)], (3, 2))):
            x = sw.DTensor.from_local(local, mesh, placements, shape=shape)
            with sw.CommDebugMode() as comm:
                result = op(x)
            assert comm.get_total_counts() == 0 and result.placements == (Partial(name),) * 2
            assert result.item() == op(x.full_tensor())
        for both in ([Partial(name), Partial()], [Partial(), Partial(name)]):
            other = sw.DTensor.from_local(local, mesh, both)
            assert op(other).item() == op(other.full_tensor())

    run_ranks(4, body)


def test_negatives_of_extremes_on_ranks_outside_of_the_mesh():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [0, 2])
        x = sw.DTensor.from_local(torch.full((2,), float(rank)), mesh, [Partial("max")], shape=(2,))
        result = -x
        assert result.placements == (Partial("min"),)
        assert result.full_tensor().tolist() == ([-2.0, -2.0] if rank != 1 else [])

    run_ranks(3, body)


def test_extremes_of_integers_wrap_around():
    """The smallest integer is its own negative, so that its extreme is not the negative of the extreme."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        lowest = torch.iinfo(torch.int64).min
        x = sw.DTensor.from_local(torch.tensor([[lowest, 1], [0, 2]][rank]), mesh, [Partial("max")])
        assert (-x).full_tensor().tolist() == [0, -2]
        assert (x - 1).full_tensor().tolist() == [-1, 1]

    run_ranks(2, body)


def test_on_each_mesh_dim():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        local = torch.arange(6.0).view(3, 2) * (3, -4, 1, 1)[rank]
        x = sw.DTensor.from_local(local, mesh, [Partial("max"), Shard(0)], shape=(6, 2))
        y = sw.DTensor.from_local(-local, mesh, [Partial("max"), Partial("max")])
        both = torch.maximum(x, x)
        assert both.placements == x.placements
        rows = sw.DTensor.from_local(-local, mesh, [Partial("max"), Partial()])
        torch.testing.assert_close(
            torch.maximum(y, rows).full_tensor(), torch.maximum(y.full_tensor(), rows.full_tensor())
        )
        torch.testing.assert_close(both.full_tensor(), x.full_tensor())

    run_ranks(4, body)
