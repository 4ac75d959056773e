"""Shardings of operators as users state them in torch's form."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.experimental import register_sharding
from shardwise.testing import run_ranks

aten = torch.ops.aten
X = torch.arange(30.0).view(5, 6).sin()


@torch.library.custom_op("sharding_test::scaled", mutates_args=())
def scaled(name: str, x: torch.Tensor, factor: float = 2.0, *, shift: int = 0) -> torch.Tensor:
    return x * factor + shift


@scaled.register_fake
def _(name, x, factor=2.0, *, shift=0):
    return torch.empty_like(x)


@torch.library.custom_op("sharding_test::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[: len(x) // 2].clone(), x.sum(0)


@halves.register_fake
def _(x):
    return x.new_empty(len(x) // 2, *x.shape[1:]), x.new_empty(x.shape[1:])


@torch.library.custom_op("sharding_test::rows_added", mutates_args=())
def rows_added(tensors: list[torch.Tensor], bias: torch.Tensor | None = None) -> torch.Tensor:
    total = sum(tensors[1:], tensors[0].clone())
    return total if bias is None else total + bias


@rows_added.register_fake
def _(tensors, bias=None):
    return torch.empty_like(tensors[0])


@torch.library.custom_op("sharding_test::grown", mutates_args={"x"})
def grown(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


ops = torch.ops.sharding_test


def on(mesh_shape, x, placements):
    return sw.distribute_tensor(x, sw.init_device_mesh("cpu", mesh_shape), placements)


def n_messages(fn):
    with sw.CommDebugMode() as comm:
        result = fn()
    return result, comm.get_total_counts()


UNEVEN = [
    ((3,), [Shard(0)]),
    ((3,), [Shard(0, sizes=[0, 4, 1])]),
    ((3,), [Shard(1, sizes=[1, 5, 0])]),
    ((2, 2), [Shard(0), Shard(0)]),
    ((2, 2), [Shard(1), Shard(0, sizes=[4, 1])]),
    ((2,), [Replicate()]),
    ((2,), [Partial()]),
]


@pytest.mark.parametrize(("mesh_shape", "placements"), UNEVEN, ids=repr)
def test_an_operator_runs_on_the_pieces(mesh_shape, placements):
    asked = []

    @register_sharding(ops.scaled.default)
    def shardings(name, x, factor, *, shift):
        asked.append((name, x.shape, x.placements, factor, shift))
        return [
            ([Replicate()], [None, Replicate(), None]),
            *(([Shard(d)], [None, Shard(d), None]) for d in range(x.ndim)),
        ]

    def body(rank):
        x = on(mesh_shape, X, placements)
        y, sent = n_messages(lambda: ops.scaled("by", x, 3.0, shift=1))
        torch.testing.assert_close(y.full_tensor(), X * 3 + 1)
        is_sum = placements == [Partial()]
        assert y.placements == ((Shard(0),) if is_sum else x.placements) and (sent > 0) == is_sum
        ops.scaled("by", x, 3.0, shift=1)

    run_ranks(len(torch.empty(mesh_shape).flatten()), body)
    assert asked[0] == ("by", X.shape, asked[0][2], 3.0, 1)


def test_what_was_left_at_its_default_is_not_passed():
    @register_sharding([ops.scaled.default])
    def shardings(name, x):
        return [([Shard(-1)], [None, Shard(-1)])]

    def body(rank):
        y = ops.scaled("by", on((2,), X, [Shard(0)]))
        assert y.placements == (Shard(1),)
        torch.testing.assert_close(y.full_tensor(), X * 2)

    run_ranks(2, body)


def test_the_value_of_a_number_is_told_each_time():
    asked = []

    @register_sharding(ops.scaled.default)
    def shardings(name, x, factor):
        asked.append(factor)
        dim = 0 if factor < 1 else 1
        return [([Shard(dim)], [None, Shard(dim), None])]

    def body(rank):
        x = on((2,), X, [Shard(0)])
        for factor, placement in ((0.5, Shard(0)), (4.0, Shard(1)), (0.5, Shard(0))):
            y = ops.scaled("by", x, factor)
            assert y.placements == (placement,)
            torch.testing.assert_close(y.full_tensor(), X * factor)

    run_ranks(2, body)
    assert sorted(asked) == [0.5, 0.5, 4.0, 4.0]


def test_outputs_of_other_lengths_where_they_divide():
    @register_sharding(ops.halves.default)
    def shardings(x):
        return [
            ([Replicate(), Replicate()], [Replicate()]),
            ([Shard(1), Shard(0)], [Shard(1)]),
            ([Shard(0), Partial()], [Shard(0)]),
        ]

    def body(rank):
        first, total = ops.halves(on((2,), X, [Shard(1, sizes=[1, 5])]))
        assert first.placements == (Shard(1, sizes=[1, 5]),) and total.placements == (Shard(0, sizes=[1, 5]),)
        torch.testing.assert_close(first.full_tensor(), X[:2])
        torch.testing.assert_close(total.full_tensor(), X.sum(0))
        first, total = ops.halves(on((2,), X, [Shard(0)]))  # 5 rows do not divide, and columns cost less than replicas
        assert first.placements == (Shard(1),)
        torch.testing.assert_close(first.full_tensor(), X[:2])
        torch.testing.assert_close(total.full_tensor(), X.sum(0))
        first, total = ops.halves(on((2,), X.t().contiguous()[:4], [Shard(0)]))
        assert (first.placements, total.placements) == ((Shard(0),), (Partial(),))
        torch.testing.assert_close(total.full_tensor(), X.t()[:4].sum(0))

    run_ranks(2, body)


def test_lists_and_absent_tensors():
    @register_sharding(ops.rows_added.default)
    def shardings(tensors, bias=None):
        n = len(tensors) + (bias is not None)
        return [([Shard(0)], [Shard(0)] * n), ([Replicate()], [Replicate()] * n)]

    def body(rank):
        uneven = on((3,), X, [Shard(0, sizes=[5, 0, 0])])
        even = on((3,), X[:, :3].repeat(1, 2), [Shard(0)])
        dense = X + X[:, :3].repeat(1, 2)
        y = ops.rows_added([uneven, even])
        assert y.placements == uneven.placements
        torch.testing.assert_close(y.full_tensor(), dense)
        torch.testing.assert_close(ops.rows_added([even, uneven], even).full_tensor(), dense + X[:, :3].repeat(1, 2))

    run_ranks(3, body)


def test_written_operands_stay_as_they_are():
    @register_sharding(ops.grown.default)
    def shardings(x, by):
        return [([], [Replicate(), Replicate()]), ([], [Shard(0), Shard(0)])]

    def body(rank):
        x = on((2,), X.clone(), [Shard(0, sizes=[1, 4])])
        ops.grown(x, on((2,), X, [Replicate()]))
        assert x.placements == (Shard(0, sizes=[1, 4]),)
        torch.testing.assert_close(x.full_tensor(), 2 * X)

    run_ranks(2, body)


def test_it_takes_the_place_of_our_own_answer():
    before = run_ranks(2, lambda rank: torch.argmin(on((2,), X, [Shard(0)]), dim=1, keepdim=True).placements)
    assert before == [(Shard(0),)] * 2

    @register_sharding(aten.argmin.default)
    def shardings(x, dim, keepdim):
        return [([Replicate()], [Replicate(), None, None])]

    def body(rank):
        y = torch.argmin(on((2,), X, [Shard(0)]), dim=1, keepdim=True)
        assert y.placements == (Replicate(),) and torch.equal(y.to_local(), X.argmin(1, keepdim=True))

    run_ranks(2, body)


def test_derivatives_are_torchs():
    @register_sharding(aten.log1p.default)
    def shardings(x):
        return [([Shard(0)], [Shard(0)])]

    def body(rank):
        x = on((2,), X.abs(), [Shard(1)]).requires_grad_()
        y = torch.log1p(x)
        assert y.placements == (Shard(0),)
        y.sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), 1 / (1 + X.abs()))

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (None, ValueError, "Return a list of pairs"),
        ([[Replicate()]], ValueError, "Return a list of pairs"),
        ([([Replicate()], [None])], ValueError, "1 output and 0 input placements"),
        ([([], [None, Replicate()])], ValueError, "0 output and 1 input placements"),
        ([([Shard(2)], [None, Shard(2)])], IndexError, "tensor of 2 dims"),
        ([(["x"], [None, Replicate()])], TypeError, "no placement"),
    ],
    ids=repr,
)
def test_answers_that_are_none(answer, error, text):
    register_sharding(ops.scaled.default)(lambda name, x: answer)

    def body(rank):
        with pytest.raises(error, match=text):
            ops.scaled("by", on((2,), X, [Shard(0)]))

    run_ranks(2, body)


def test_operators_that_cannot_have_one():
    with pytest.raises(TypeError, match=r"aten\.add is no overload"):
        register_sharding(aten.add)
    with pytest.raises(ValueError, match="composes aten::linear"):
        register_sharding(aten.linear.default)(lambda x, w: [])
