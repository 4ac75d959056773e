"""The result of an operator does not hang on the operators before it."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Shard
from shardwise.testing import run_ranks


@pytest.mark.parametrize("statistic", ["var", "std", "var_mean"])
def test_statistics_after_a_sort_of_terms_of_a_sum(statistic):
    """The tensor has 10 elements in two shards, each a sum of two terms."""
    dense = torch.arange(10.0).sin()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        terms = dense[rank // 2 * 5 :][:5] * (0.25 if rank % 2 else 0.75)
        x = sw.DTensor.from_local(terms, mesh, [Shard(0), Partial()], shape=(10,), stride=(1,))
        torch.testing.assert_close(x.sort(0).values.full_tensor(), dense.sort(0).values)
        ours, theirs = getattr(x, statistic)(0), getattr(dense, statistic)(0)
        for mine, expected in zip(
            *[each if isinstance(each, tuple) else (each,) for each in (ours, theirs)], strict=True
        ):
            torch.testing.assert_close(mine.full_tensor(), expected)

    run_ranks(4, body)
