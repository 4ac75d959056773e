"""Plain functions on the pieces of DTensors."""

import pytest
import torch
import torch.distributed.tensor as torchs
import torch.distributed.tensor.experimental as torchs_experimental

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.experimental import local_map
from shardwise.testing import run_ranks

A, B = torch.arange(12.0).view(4, 3), torch.arange(15.0).view(3, 5)


def mesh_of(n_ranks):
    return sw.init_device_mesh("cpu", (n_ranks,))


def test_a_function_of_pieces_is_one_of_dtensors():
    @local_map(out_placements=[Partial()], in_placements=([Shard(1)], [Shard(-2)], None))
    def matmul(a, b, factor):
        assert type(a) is type(b) is torch.Tensor
        return factor * (a @ b)

    def body(rank):
        a, b = (sw.distribute_tensor(x, mesh_of(2), [Shard(dim)]) for x, dim in ((A, 1), (B, 0)))
        a.requires_grad_()
        with sw.CommDebugMode() as comm:
            y = matmul(a, b, 2.0)
        assert y.placements == (Partial(),) and comm.get_total_counts() == 0
        torch.testing.assert_close(y.full_tensor(), 2 * A @ B)
        y.sum().backward()
        torch.testing.assert_close(a.grad.full_tensor(), 2 * B.sum(1).expand(4, 3))
        plain = matmul(A, B, 1.0)
        assert type(plain) is torch.Tensor and torch.equal(plain, A @ B)

    run_ranks(2, body)


@pytest.mark.parametrize("placement", [Shard(0), Shard(0, sizes=[3, 0, 1])], ids=repr)
def test_results_are_sharded_as_unevenly_as_arguments(placement):
    split = local_map(
        lambda a, b: (a + 1, [a.sum(1), 2], b), out_placements=([Shard(0)], [Shard(0)], None, [Replicate()])
    )

    def body(rank):
        a = sw.distribute_tensor(A, mesh_of(3), [placement])
        b = sw.distribute_tensor(B, mesh_of(3), [Replicate()])
        plus, (sums, two), same = split(a, b)
        assert two == 2 and plus.placements == sums.placements == (placement,)
        assert torch.equal(plus.full_tensor(), A + 1) and torch.equal(sums.full_tensor(), A.sum(1))
        assert same.placements == (Replicate(),) and torch.equal(same.to_local(), B)

    run_ranks(3, body)


# the argument's rows and placements on a mesh, what the function makes of a piece, and the rows of the results, of which each rank has the
# same number unless extents are given
SHORTENED = [
    (7, (2,), [Shard(0)], lambda p: p[:3], [0, 1, 2, 4, 5, 6], None),
    (7, (2,), [Shard(0)], lambda p: p[p[:, 0] > 2], [3, 4, 5, 6], (1, 3)),
    (6, (2, 2), [Shard(0), Shard(0)], lambda p: p[:1], [0, 2, 3, 5], None),
    (6, (2, 2), [Shard(0), Shard(0)], lambda p: p + 0, range(6), None),
    (7, (2, 2), [Shard(0), Replicate()], lambda p: p[1:], [1, 2, 3, 5, 6], None),
]


@pytest.mark.parametrize(("n_rows", "mesh_shape", "placements", "function", "rows", "sizes"), SHORTENED)
def test_results_of_other_lengths_than_uneven_arguments_are_the_pieces_in_order(
    n_rows, mesh_shape, placements, function, rows, sizes
):
    dense = torch.arange(float(n_rows)).view(n_rows, 1)

    def body(rank):
        x = sw.distribute_tensor(dense, sw.init_device_mesh("cpu", mesh_shape), placements)
        with sw.CommDebugMode() as comm:
            y = local_map(function, out_placements=placements)(x)
        assert y.shape == (len(rows), 1) and torch.equal(y.full_tensor(), dense[list(rows)])
        if sizes is not None:
            assert y.placements == (Shard(0, sizes=sizes),)
        assert comm.get_comm_counts() == {"all_gather": 1}

    run_ranks(torch.Size(mesh_shape).numel(), body)


def test_lengths_of_all_results_share_a_message():
    dense = torch.arange(14.0).view(7, 2)

    def body(rank):
        x = sw.distribute_tensor(dense, mesh_of(2), [Shard(0)])
        function = local_map(lambda p: (p[:3], [p[p[:, 0] > 4], p.sum(1)], p[:1]), ([Shard(0)],) * 4)
        with sw.CommDebugMode() as comm:
            first, (large, sums), one = function(x)
        assert comm.get_comm_counts() == {"all_gather": 1}
        assert torch.equal(first.full_tensor(), dense[[0, 1, 2, 4, 5, 6]])
        assert torch.equal(large.full_tensor(), dense[3:]) and torch.equal(sums.full_tensor(), dense.sum(1))
        assert torch.equal(one.full_tensor(), dense[[0, 4]])

    run_ranks(2, body)


def test_arguments_are_moved_if_that_is_wanted():
    def body(rank):
        mesh = mesh_of(2)
        a = sw.distribute_tensor(A, mesh, [Shard(0)])
        rows = {"out_placements": [Shard(0)], "in_placements": ([Replicate()],), "device_mesh": mesh}
        with pytest.raises(ValueError, match="set redistribute_inputs=True"):
            local_map(lambda a: a, **rows)(a)
        y = local_map(lambda a: a, **rows, redistribute_inputs=True)(a)
        assert y.shape == (8, 3) and torch.equal(y.to_local(), A)

    run_ranks(2, body)


def test_gradients_may_be_laid_out_otherwise():
    def body(rank):
        mesh = mesh_of(2)
        x = sw.distribute_tensor(A, mesh, [Shard(0)])
        w = sw.distribute_tensor(B, mesh, [Replicate()]).requires_grad_()
        mm = local_map(torch.mm, [Shard(0)], ([Shard(0)], [Replicate()]), ([Shard(0)], [Partial()]), mesh)
        mm(x, w).to_local().sum().backward()
        torch.testing.assert_close(w.grad.full_tensor(), A.t() @ torch.ones(4, 5))

    run_ranks(2, body)


def test_what_does_not_fit_is_an_error():
    def body(rank):
        x = sw.distribute_tensor(A, mesh_of(2), [Shard(0)])
        rows = [Shard(0)]
        with pytest.raises(AssertionError, match="expects placements but received None"):
            local_map(torch.add, rows, (rows, None))(x, x)
        with pytest.raises(AssertionError, match="in_placements length 1 does not match the number of input args 2"):
            local_map(torch.add, rows, (rows,))(x, x)
        with pytest.raises(AssertionError, match="expects None placements"):
            local_map(torch.add, rows, (rows, rows))(x, 2)
        with pytest.raises(AssertionError, match="out_placements has 1 and the function returned 2"):
            local_map(lambda x: (x, x), rows)(x)
        with pytest.raises(AssertionError, match="is no tensor"):
            local_map(lambda x: 3, rows)(x)
        with pytest.raises(AssertionError, match="returned a DTensor"):
            local_map(lambda piece: x, rows)(x)

    run_ranks(2, body)


def test_results_that_no_placements_describe_are_an_error_on_all_ranks():
    failed = []

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        x = sw.distribute_tensor(torch.arange(7.0), mesh, [Shard(0), Replicate()])
        with pytest.raises(ValueError, match=r"pieces of \[\[4, 1\], \[3, 3\]\] along dim 0"):
            local_map(lambda piece: piece[:1] if rank == 1 else piece, [Shard(0), Replicate()])(x)
        failed.append(rank)

    run_ranks(4, body)
    assert sorted(failed) == [0, 1, 2, 3]


def test_torchs_local_map_gives_functions_the_pieces_of_our_tensors():
    seen = []

    def double(a):
        seen.append(a)
        return 2 * a

    torchs_map = torchs_experimental.local_map(
        double, out_placements=[torchs.Shard(0)], in_placements=([torchs.Shard(0)],), redistribute_inputs=True
    )

    def body(rank):
        a = sw.distribute_tensor(A, mesh_of(2), [Shard(1)])
        y = torchs_map(a)
        assert y.placements == (Shard(0),) and torch.equal(y.full_tensor(), 2 * A)
        assert torch.equal(torchs_map(A), 2 * A)

    run_ranks(2, body)
    assert sorted(tuple(a.shape) for a in seen) == [(2, 3), (2, 3), (4, 3), (4, 3)]
    assert all(type(a) is torch.Tensor for a in seen)
