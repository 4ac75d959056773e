"""Indexing with Python's brackets, which calls the operators with the GIL held."""

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


PLACEMENTS = [sw.Replicate(), sw.Shard(0), sw.Shard(1), sw.Shard(0, sizes=[3, 0, 1, 2]), sw.Partial()]


def laid_out(dense, mesh, placement):
    """`dense` as `placement`, ready for gradients; a Partial is made of unlike terms."""
    if placement.is_partial():
        term = dense / 2 if mesh.get_rank() < 2 else torch.zeros_like(dense)
        return sw.DTensor.from_local(term, mesh, [placement], run_check=False).requires_grad_()
    return sw.distribute_tensor(dense.detach(), mesh, [placement], src_data_rank=None).requires_grad_()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_lists_tensors_and_masks_are_dense(placement):
    dense = torch.arange(36.0, dtype=torch.float64).view(6, 6)
    ids, mask, of_rows = torch.tensor([4, 0, -1, 4]), dense % 5 < 2, torch.tensor([1, 0, 0, 1, 1, 0]).bool()
    keys = {
        "list": [[5, -1, 0]],
        "ids": [ids],
        "ids of columns": [slice(None), ids],
        "pairs": [ids, ids.flip(0)],
        "a table of ids": [ids.view(2, 2)],
        "slice and ids": [slice(1, 5), ids],
        "mask": [mask],
        "mask of rows": [of_rows],
        "mask and ids": [of_rows, torch.tensor([1, 2, 5])],
    }

    def check(mesh):
        for name, key in keys.items():
            for as_dtensor in (False, True):
                own = [
                    sw.distribute_tensor(k, mesh, [sw.Shard(0)]) if as_dtensor and isinstance(k, torch.Tensor) else k
                    for k in key
                ]
                expected, tensor = dense.clone().requires_grad_(), laid_out(dense, mesh, placement)
                found = tensor[tuple(own)]
                assert torch.equal(found.full_tensor(), expected[tuple(key)]), name
                found.square().sum().backward()
                expected[tuple(key)].square().sum().backward()
                assert torch.equal(tensor.grad.full_tensor(), expected.grad), name

    on_ranks(check)


@pytest.mark.parametrize("placement", PLACEMENTS[:-1])
def test_writes_by_index_reach_the_rows_of_every_rank(placement):
    dense = torch.arange(36.0).view(6, 6)
    ids, mask = torch.tensor([5, 0, -2]), dense % 5 < 2
    values = torch.arange(18.0).view(3, 6).neg()

    def check(mesh):
        tensor, expected = sw.distribute_tensor(dense.clone(), mesh, [placement]), dense.clone()
        own = [sw.distribute_tensor(each, mesh, [sw.Replicate()]) for each in (ids, mask, values)]
        for each, (at, where, rows) in ((tensor, own), (expected, (ids, mask, values))):
            each[at] = rows
            each[:, at] += 1
            each[where] = -7
            each[[1, 2]] = 3
            each.index_add_(0, at.remainder(6), rows, alpha=2)
            each.scatter_(1, at.remainder(6).view(1, 3), 9)
            each.index_put_((at,), rows, accumulate=True)
            each.masked_scatter_(where, rows.flatten())
        assert tensor.placements == (placement,)
        assert torch.equal(tensor.full_tensor(), expected)

    on_ranks(check)


@pytest.mark.parametrize("placement", [sw.Replicate(), sw.Shard(0), sw.Shard(1)])
def test_take_along_dim_counts_from_the_end(placement):
    dense = torch.arange(24.0).view(8, 3)

    def check(mesh):
        x = sw.distribute_tensor(dense, mesh, [placement])
        for places in (torch.full((8, 1), -1), torch.full((1, 2), -2), torch.arange(-12, 12).view(8, 3)):
            assert torch.equal(x.take_along_dim(places, 1).full_tensor(), dense.take_along_dim(places, 1))

    on_ranks(check)


def test_a_gathered_lookup_can_be_looked_up_again():
    dense = torch.arange(24.0).view(8, 3)
    ids = torch.tensor([7, 0, 3, 3])

    def check(mesh):
        table = sw.distribute_tensor(dense, mesh, [sw.Shard(0)])
        own = sw.distribute_tensor(ids, mesh, [sw.Replicate()])
        for look_up in (lambda t, i: t[i], lambda t, i: t.index_select(0, i), lambda t, i: F.embedding(i, t)):
            with sw.lookup_exchange("reduce_scatter"):
                first = look_up(table, own)
                assert first.placements == (sw.Partial(),)
                gathered = first.redistribute(placements=[sw.Replicate()])
                again = look_up(table, own)
            assert torch.equal((gathered + again).full_tensor(), 2 * dense[ids])
            assert torch.equal((first * gathered).full_tensor(), dense[ids].square())

    on_ranks(check)


@pytest.mark.parametrize("bad", [8, -9])
@pytest.mark.parametrize("of_ids", [sw.Replicate(), sw.Shard(0)])
def test_an_index_out_of_range_is_an_index_error_on_every_rank(bad, of_ids):
    def check(mesh):
        table = sw.distribute_tensor(torch.rand(8, 3), mesh, [sw.Shard(0)])
        ids = sw.distribute_tensor(torch.tensor([0, 1, bad, -8]), mesh, [of_ids])
        with (
            sw.CommDebugMode() as sent,
            pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension 0"),
        ):
            table[ids]
        assert (sent.get_total_counts() == 0) == of_ids.is_replicate()
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            table.index_put_((ids,), sw.distribute_tensor(torch.rand(4, 3), mesh, [sw.Replicate()]))
        assert torch.equal(table[ids.clamp(-8, 7)].full_tensor(), table.full_tensor()[[0, 1, max(min(bad, 7), -8), -8]])

    on_ranks(check)


@pytest.mark.parametrize("placement", PLACEMENTS[:-1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_are_dense(placement, mode):
    table, ids = torch.rand(6, 6), torch.tensor([[1, 5], [0, 0], [2, 4]])
    expected = table.clone().requires_grad_()
    result = F.embedding_bag(ids, expected, mode=mode)
    result.square().sum().backward()

    def check(mesh):
        weight = sw.distribute_tensor(table, mesh, [placement]).requires_grad_()
        found = F.embedding_bag(sw.distribute_tensor(ids, mesh, [sw.Shard(0)]), weight, mode=mode)
        found.square().sum().backward()
        torch.testing.assert_close(found.full_tensor(), result)
        torch.testing.assert_close(weight.grad.full_tensor(), expected.grad)

    on_ranks(check)


def test_places_beyond_int32_are_no_places_near_the_beginning():
    """What ranks compute whose shard begins behind four billion rows."""
    shard, index, first = torch.tensor([3.0, 4.0]), torch.tensor([0, 1], dtype=torch.int32), 2**32
    own = torch.ops.shardwise
    assert own.index(shard, [index], [0], [first], [first + 2], True).tolist() == [0, 0]
    assert own.gather(shard, index, 0, first, first + 2).tolist() == [0, 0]
    assert own.put(shard, [index], torch.tensor(7.0), [0], [first], [first + 2], True, False).tolist() == [3, 4]
    assert own.scatter(shard, index.long(), shard, 0, first, first + 2, "add", True).tolist() == [3, 4]
    assert own.index(shard, [index - 2], [0], [first], [first + 2], True).tolist() == [3, 4]


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("terms", ["sum", "avg"])
def test_index_put_of_a_sum_into_a_sum_sends_nothing(accumulate, terms):
    """The write is linear in both together; replicated values become terms on the way."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        whole, rows, at = torch.arange(12.0).view(4, 3), torch.tensor([[5.0, 6, 7], [8, 9, 0]]), torch.tensor([3, 0])
        layout = [sw.Partial(terms), sw.Shard(1)]
        cut = slice(0, 2) if rank % 2 == 0 else slice(2, 3)
        x = sw.DTensor.from_local(whole[:, cut] * (1 + rank // 2), mesh, layout, shape=(4, 3))
        partial = sw.DTensor.from_local(rows[:, cut] * (1 + rank // 2), mesh, layout, shape=(2, 3))
        replicas = sw.distribute_tensor(rows, mesh, [sw.Replicate(), sw.Shard(1)])
        for values in (partial, replicas):
            for in_place in (False, True):
                with sw.CommDebugMode() as comm:
                    result = (
                        x.clone().index_put_((at,), values, accumulate)
                        if in_place
                        else x.index_put((at,), values, accumulate)
                    )
                expected = x.full_tensor().index_put((at,), values.full_tensor(), accumulate)
                torch.testing.assert_close(result.full_tensor(), expected)
                assert comm.get_total_counts() == 0 and result.placements == tuple(layout)
        if accumulate:
            return
        replica = sw.distribute_tensor(whole, mesh, [sw.Replicate(), sw.Shard(1)])
        with sw.CommDebugMode() as comm:  # the few rows are reduced, not all of a Partial result by each of its readers
            result = replica.index_put((at,), partial)
        assert comm.get_total_counts() == 1 and result.placements == (sw.Replicate(), sw.Shard(1))

    run_ranks(4, body)
