"""maximum and minimum of Partials: what is the largest on each rank is reduced once, by whoever reads it."""

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
        (Partial("max"), Partial("min"), None),
        (Partial(), Partial(), None),
        (Partial("max"), Partial(), None),
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
        assert comm.get_total_counts() == 0 or passes != name
        torch.testing.assert_close(result.full_tensor(), op(*(operand.full_tensor() for operand in operands)))

    run_ranks(3, body)


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
