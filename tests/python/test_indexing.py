"""Indexing with Python's brackets: it comes to the operators with the interpreter's lock held."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise.testing import run_ranks


def on_ranks(check) -> None:
    run_ranks(4, lambda rank: check(sw.init_device_mesh("cpu", (4,))))


@pytest.mark.parametrize("placement", [sw.Replicate(), sw.Shard(0), sw.Shard(1), sw.Shard(0, sizes=[3, 0, 1, 2])])
def test_parts_are_dense_and_writes_reach_the_base(placement):
    dense = torch.arange(36.0).view(6, 6)

    def check(mesh):
        tensor = sw.distribute_tensor(dense, mesh, [placement])
        for index in (2, -1, slice(1, 5, 2), (slice(None), 3), (..., None), (slice(2, 4), slice(1, None))):
            assert torch.equal(tensor[index].full_tensor(), dense[index])
        written, expected = tensor.clone(), dense.clone()
        for each in (written, expected):
            each[1:3] = 0
            each[:, 2:4] += 1
            each[::2, 1:].mul_(3)
        assert torch.equal(written.full_tensor(), expected)

    on_ranks(check)


def test_a_row_of_another_rank_is_not_written_to_silently():
    def check(mesh):
        tensor = sw.distribute_tensor(torch.ones(6, 6), mesh, [sw.Shard(0)])
        with pytest.raises(ValueError, match="cannot write to a view whose values were moved"):
            tensor[3].mul_(2)

    on_ranks(check)


def test_embedding_counts_padding_from_the_end():
    table, ids = torch.rand(20, 3), torch.tensor([[1, 5, 19], [0, 0, 7]])
    expected = table.clone().requires_grad_()
    F.embedding(ids, expected, padding_idx=-1).sum().backward()

    def check(mesh):
        weight = sw.distribute_tensor(table, mesh, [sw.Shard(0, sizes=[1, 0, 9, 10])]).requires_grad_()
        F.embedding(sw.distribute_tensor(ids, mesh, [sw.Shard(0)]), weight, padding_idx=-1).sum().backward()
        assert weight.grad.placements == weight.placements
        assert torch.equal(weight.grad.full_tensor(), expected.grad)

    on_ranks(check)


@pytest.mark.parametrize("placement", [sw.Replicate(), sw.Shard(0), sw.Shard(1)])
def test_attention_of_modules_is_dense(placement):
    query, key, value = (torch.rand(4, 4, 5, 3, dtype=torch.float64) for _ in range(3))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def check(mesh):
        parts = [sw.distribute_tensor(each, mesh, [placement]) for each in (query, key, value)]
        result = F.scaled_dot_product_attention(*parts, is_causal=True)
        assert result.placements == (placement,)
        assert torch.allclose(result.full_tensor(), expected)

    on_ranks(check)
