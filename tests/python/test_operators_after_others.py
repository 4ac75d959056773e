"""The result of an operator does not hang on the operators before it."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks


@pytest.mark.parametrize("made_by", ["from_local", "redistribute"])
@pytest.mark.parametrize("statistic", ["var", "std", "var_mean"])
def test_statistics_after_a_sort_of_terms_of_a_sum(statistic, made_by):
    """The tensor has 10 elements in two shards, each a sum of two terms."""
    dense = torch.arange(10.0).sin()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        if made_by == "from_local":
            terms = dense[rank // 2 * 5 :][:5] * (0.25 if rank % 2 else 0.75)
            x = sw.DTensor.from_local(terms, mesh, [Shard(0), Partial()], shape=(10,), stride=(1,))
        else:
            x = sw.distribute_tensor(dense, mesh, [Shard(0), Replicate()])
            x = x.redistribute(placements=[Shard(0), Partial()])
        torch.testing.assert_close(x.sort(0).values.full_tensor(), dense.sort(0).values)
        ours, theirs = getattr(torch, statistic)(x, 0), getattr(torch, statistic)(dense, 0)
        pairs = [each if isinstance(each, tuple) else (each,) for each in (ours, theirs)]
        for mine, expected in zip(*pairs, strict=True):
            torch.testing.assert_close(mine.full_tensor(), expected)

    run_ranks(4, body)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)])
def test_operators_on_an_empty_sum_after_each_other(placement):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(torch.zeros(5, 0), mesh, [placement])
        index = sw.distribute_tensor(torch.tensor([0, 3, 1, 2]), mesh, [Shard(0)])
        values = sw.distribute_tensor(torch.zeros(4, 0), mesh, [Shard(0)])
        y = x.index_put((index,), values, accumulate=True)
        assert y.placements == (Partial(),)
        places = sw.distribute_tensor(torch.zeros(2, 0, dtype=torch.int64), mesh, [Replicate()])
        for result in (y.log(), y.scatter_(0, places, 1.0), y.masked_fill(y == 0, 1.0)):
            assert result.shape == (5, 0) and result.full_tensor().shape == (5, 0)

    run_ranks(2, body)
