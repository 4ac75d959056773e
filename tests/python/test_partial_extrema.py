"""Maxima and minima that stay Partial: what is the largest on each rank is reduced once, by whoever reads it."""

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


NUMBERS = {
    "add": (lambda x, r: x + r, False),
    "sub": (lambda x, r: x - r, False),
    "times a number": (lambda x, r: torch.add(x, r, alpha=-2), False),
    "a scalar": (lambda x, r: x + 1.5, False),
    "in place": (lambda x, r: x.clone().add_(r), False),
    "neg": (lambda x, r: -x, True),
}


@pytest.mark.parametrize("call", NUMBERS)
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize(
    ("shape", "placements"),
    [((3,), []), ((2, 2), [Shard(0, sizes=[1, 3])]), ((2, 2), [Shard(1, sizes=[0, 2])])],
    ids=repr,
)
def test_numbers_added_to_extremes_send_nothing(call, name, shape, placements):
    """max(a, b) + r = max(a + r, b + r), and -max(a, b) = min(-a, -b)."""
    function, decreases = NUMBERS[call]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        placed = [Partial(name), *placements]
        sizes = sw.distribute_tensor(torch.zeros(4, 2), mesh, [Replicate(), *placements]).to_local().shape
        local = (
            torch.randn(sizes, generator=torch.Generator().manual_seed(rank)) if sizes.numel() else torch.empty(sizes)
        )
        x = sw.DTensor.from_local(local, mesh, placed, shape=(4, 2)).requires_grad_()
        r = sw.distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Replicate(), *placements])
        with sw.CommDebugMode() as comm:
            result = function(x, r)
        assert comm.get_total_counts() == 0
        opposite = {"max": "min", "min": "max"}[name]
        assert result.placements == (Partial(opposite if decreases else name), *x.placements[1:])
        torch.testing.assert_close(result.full_tensor(), function(x.detach().full_tensor(), r.full_tensor()))
        result.sum().backward()
        assert (x.grad.full_tensor() == (-1 if decreases else 1)).all()

    run_ranks(torch.Size(shape).numel(), body)


@pytest.mark.parametrize("op", [torch.amax, torch.amin, torch.max, torch.min])
def test_extremes_of_extremes_send_nothing(op):
    name = op.__name__.removeprefix("a")

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        local = torch.arange(6.0).view(3, 2) * (rank - 1.5)
        for placements, shape in (([Partial(name), Shard(0)], (6, 2)), ([Partial(name), Partial(name)], (3, 2))):
            x = sw.DTensor.from_local(local, mesh, placements, shape=shape)
            with sw.CommDebugMode() as comm:
                result = op(x)
            assert comm.get_total_counts() == 0 and result.placements == (Partial(name),) * 2
            assert result.item() == op(x.full_tensor())
        other = sw.DTensor.from_local(local, mesh, [Partial(name), Partial()])
        assert op(other).item() == op(other.full_tensor())

    run_ranks(4, body)


def test_numbers_on_ranks_outside_of_the_mesh():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [0, 2])
        x = sw.DTensor.from_local(torch.full((2,), float(rank)), mesh, [Partial("max")], shape=(2,))
        result = -(x + sw.ones(2, device_mesh=mesh))
        assert result.placements == (Partial("min"),)
        assert result.full_tensor().tolist() == ([-3.0, -3.0] if rank != 1 else [])

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


def test_a_bias_joins_a_sum_and_a_residual_does_not():
    """A bias is smaller than the sum. A residual stream would stay Partial, and be reduced again by each reader."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = torch.arange(6.0).view(3, 2)
        for terms in (Partial(), Partial("avg")):
            x = sw.DTensor.from_local(whole * (rank + 1), mesh, [terms])
            for other, stays in ((whole[0], True), (whole[:, :1], True), (whole, terms == Partial("avg"))):
                r = sw.distribute_tensor(other.contiguous(), mesh, [Replicate()]).requires_grad_()
                for function in (torch.add, torch.sub, lambda a, b: torch.add(b, a)):
                    with sw.CommDebugMode() as comm:
                        result = function(x, r)
                    assert (result.placements == (terms,)) == stays
                    assert comm.get_total_counts() == (not stays)
                    torch.testing.assert_close(result.full_tensor(), function(x.full_tensor(), other))
                    (grad,) = torch.autograd.grad(result.sum(), r)
                    assert grad.full_tensor().abs().sum() == 6

    run_ranks(2, body)


def test_on_each_mesh_dim():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        local = torch.arange(6.0).view(3, 2) * (rank - 1.5)
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
