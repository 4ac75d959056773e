"""On one rank an operator and its backward do what they do on a plain tensor: no copy, no pass over the values besides."""

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

N = 64

# A call of x, y and ids; x and y take gradients.
CALLS = {
    "split": lambda x, y, ids: x.split(16),
    "split_with_sizes": lambda x, y, ids: x.split_with_sizes([N - 2, 0, 2], 1),
    "unused part": lambda x, y, ids: x.split(16)[1],
    "unbind": lambda x, y, ids: x.view(4, N // 4, N).unbind(),
    "unbind columns": lambda x, y, ids: x.view(N, 4, N // 4).unbind(1),
    "select": lambda x, y, ids: x[3],
    "slice": lambda x, y, ids: x[8:-8],
    "cat": lambda x, y, ids: torch.cat([x, y]),
    "repeat": lambda x, y, ids: x.repeat(2, 1),
    "reshape of a transpose": lambda x, y, ids: x.t().reshape(-1),
    "index_select": lambda x, y, ids: x.index_select(0, ids),
    "index_select of columns": lambda x, y, ids: x.index_select(1, ids),
    "x[ids]": lambda x, y, ids: x[ids],
    "index_add": lambda x, y, ids: x.index_add(0, ids, y),
    "index_copy": lambda x, y, ids: x.index_copy(0, ids, y),
    "index_put": lambda x, y, ids: x.index_put((ids,), y),
    "gather": lambda x, y, ids: x.gather(1, ids.unsqueeze(1).expand(N, N)),
    "scatter": lambda x, y, ids: x.scatter(0, ids.unsqueeze(1).expand(N, N), y),
    "scatter_add": lambda x, y, ids: x.scatter_add(0, ids.unsqueeze(1).expand(N, N), y),
    "one_hot": lambda x, y, ids: F.one_hot(ids, 3 * N),
}


def results_of(call, operands):
    result = call(*operands)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def run(call, operands):
    results = results_of(call, operands)
    if results[0].requires_grad:
        weights = [torch.ones_like(result) * (i + 1) for i, result in enumerate(results)]
        return results, torch.autograd.grad(results, operands[:2], weights, allow_unused=True)
    return results, ()


def bytes_taken(call, operands):
    """The bytes of the large allocations in a call and its backward."""
    run(call, operands)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run(call, operands)
    events = profiled.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > N * N)


def values_of(tensors):
    return [each.full_tensor() if isinstance(each, sw.DTensor) else each for each in tensors if each is not None]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_no_more_memory_is_taken_than_by_the_dense_call(call):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        torch.manual_seed(0)
        dense = [torch.randn(N, N).requires_grad_(), torch.randn(N, N).requires_grad_(), torch.randperm(N)]
        ours = [
            sw.distribute_tensor(each.detach(), mesh, [Shard(0)]).requires_grad_(each.requires_grad) for each in dense
        ]
        assert bytes_taken(call, ours) <= bytes_taken(call, dense)
        for found, wanted in zip(run(call, ours), run(call, dense), strict=True):
            for own, other in zip(values_of(found), values_of(wanted), strict=True):
                torch.testing.assert_close(own, other, rtol=0, atol=0)

    run_ranks(1, body)


def test_indices_are_read_once():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        x = sw.distribute_tensor(torch.randn(N, N), mesh, [Shard(0)])
        ids = sw.distribute_tensor(torch.arange(N), mesh, [Shard(0)])
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            x[ids], x.index_select(0, ids), x.index_add(0, ids, x), x.gather(0, ids.unsqueeze(1))
        assert not [event for event in profiled.events() if event.name in ("aten::aminmax", "aten::min", "aten::max")]
        for wrong, error in ((x.__getitem__, IndexError), (lambda i: x.index_select(0, i), IndexError)):
            with pytest.raises(error, match="out of"):
                wrong(ids + 1)
        with pytest.raises(RuntimeError, match="out of bounds"):
            x.gather(0, (ids + 1).unsqueeze(1))

    run_ranks(1, body)


def test_a_view_of_a_tensor_on_one_rank_shares_its_memory():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        x = sw.distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])
        row, flat = x[1], x.t().unsqueeze(0)[0]
        row.fill_(1)
        assert x.to_local()[1].eq(1).all() and row.to_local().data_ptr() == x.to_local()[1].data_ptr()
        x.to_local().fill_(2)  # a program's own write, which no rank is told of
        assert row.full_tensor().eq(2).all() and flat.full_tensor().eq(2).all()

    run_ranks(1, body)


@pytest.mark.parametrize("layout", [Shard(0), Shard(1), Replicate()])
def test_the_gradient_of_a_leaf_is_memory_of_its_own(layout):
    """A gradient that two leaves share, or that the program holds, is copied into the leaf's layout."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        leaves = [sw.distribute_tensor(torch.ones(4, 4), mesh, [layout]).requires_grad_() for _ in range(2)]
        weight = sw.distribute_tensor(torch.full((4, 4), 2.0), mesh, [Partial() if layout == Shard(1) else Shard(1)])
        seen = []
        total = leaves[0] + leaves[1]
        total.register_hook(seen.append)
        for _ in range(2):
            total.backward(weight.redistribute(placements=[Replicate()]), retain_graph=True)
        for leaf in leaves:
            assert leaf.grad.placements == leaf.placements
            assert leaf.grad.to_local().eq(4).all()
            leaf.grad.add_(1)
        assert all(leaf.grad.to_local().eq(5).all() for leaf in leaves)
        assert all(grad.full_tensor().eq(2).all() for grad in seen)

    run_ranks(1, body)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_parts_have_one_derivative(n_ranks):
    """Also where some parts take no part in the loss, for second derivatives, and in forward mode."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        generator = torch.Generator().manual_seed(0)
        dense = torch.randn(5, 4, generator=generator)

        def loss(x):
            first, _, last = x.split(2)
            columns = x.unbind(1)
            return (first.sin() * columns[2][:2].unsqueeze(1)).sum() + last.square().sum() * columns[0].sum()

        found = []
        for layout in (None, Shard(0), Shard(1), Replicate()):
            x = dense if layout is None else sw.distribute_tensor(dense, mesh, [layout])
            x = x.clone().detach().requires_grad_()
            (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            found.append(values_of([first, second]))
            parts = x.split(2)
            assert len({part.grad_fn for part in parts}) == 1
        for each in found[1:]:
            for own, wanted in zip(each, found[0], strict=True):
                torch.testing.assert_close(own, wanted)

    run_ranks(n_ranks, body)


@pytest.mark.parametrize("parts_of", [lambda x: x.split(2), lambda x: x.unbind(), lambda x: x.split_with_sizes([1, 3])])
def test_parts_refuse_writes_as_torchs_do(parts_of):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        x = sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]).requires_grad_()
        with pytest.raises(RuntimeError, match="a function that returns multiple views"):
            parts_of(x * 1)[0].add_(1)
        y = x * 1
        parts = parts_of(y)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="a function that returns multiple views"):
            parts[0].sum().backward()

    run_ranks(1, body)


@pytest.mark.parametrize("dim", [None, 0, (1, -2)])
def test_the_backward_of_a_norm_is_dense_where_it_is_zero_and_in_one_pass(dim):
    x = torch.randn(8, 6, dtype=torch.float64)
    x[:, 0] = 0

    def gradients(operand):
        norm = torch.linalg.vector_norm(operand, dim=dim)
        (first,) = torch.autograd.grad(norm.sum(), operand, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), operand, retain_graph=True)
        norm.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            norm.sum().backward()
        return first, second

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        expected = gradients(x.clone().requires_grad_())
        found = gradients(sw.distribute_tensor(x, mesh, [Shard(0, sizes=[7, 1])]).requires_grad_())
        for own, dense in zip(found, expected, strict=True):
            torch.testing.assert_close(own.full_tensor(), dense, equal_nan=True)

    def count(rank):
        operand = sw.distribute_tensor(torch.randn(8, 6), sw.init_device_mesh("cpu", (1,))).requires_grad_()
        norm = torch.linalg.vector_norm(operand, dim=dim)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            torch.autograd.grad(norm.sum(), operand)
        passes = [event.name for event in seen.events() if [8, 6] in event.input_shapes]
        assert passes.count("aten::mul") == 1 and "aten::div" not in passes, passes

    run_ranks(2, check)
    run_ranks(1, count)
