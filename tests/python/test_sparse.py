"""Sparse DTensors: gradients of tables for torch.optim, and the operators of plain sparse tensors."""

import copy

import pytest
import torch
from copies import through_pickle, through_save
from layouts import TABLE_COLUMNS as COLUMNS
from layouts import TABLE_GRID as GRID
from layouts import TABLE_SHAPE as SHAPE
from layouts import TABLES, Case
from torch import nn

import shardwise as sw
from shardwise import DTensor, EnumerableShard, Partial, Replicate, Shard
from shardwise.testing import run_ranks

torch.sparse.check_sparse_tensor_invariants.disable()  # explicitly, or torch warns

N_ROWS, N_COLUMNS = SHAPE
by_name = {"argvalues": TABLES, "ids": [case.name for case in TABLES]}


def plain_sparse(seed=0, n=7, dtype=torch.float64):
    """Entries of an uncoalesced gradient: some rows twice, and some not at all."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, N_ROWS, (1, n), generator=generator)
    return torch.sparse_coo_tensor(rows, torch.randn(n, N_COLUMNS, generator=generator).to(dtype), SHAPE)


def distributed(plain, case, placements=None):
    """The same tensor in the layout of the case."""
    mesh = case.mesh()
    everywhere = DTensor.from_local(plain, mesh, [Replicate()] * mesh.ndim)
    return everywhere.redistribute(placements=placements or case.placements)


def on_ranks(case, body):
    run_ranks(case.n_ranks, lambda rank: body())


def is_member(tensor):
    return tensor.device_mesh.get_coordinate() is not None


def assert_equal(tensor, plain):
    """A distributed tensor, sparse or not, and a plain one."""
    full = tensor.full_tensor()
    if is_member(tensor):
        torch.testing.assert_close(full.to_dense(), plain.to_dense(), rtol=1e-12, atol=1e-12)


class Entries(torch.autograd.Function):
    """A loss with the given gradient."""

    @staticmethod
    def forward(ctx, table, grad):
        ctx.grad = grad
        return table.detach().sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.grad(), None


def trained(table, optimizer, grad, n_steps=4, **options):
    """The table after some steps of the optimizer."""
    parameter = nn.Parameter(table.clone())
    optimizer = optimizer([parameter], **options)
    for step in range(n_steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        Entries.apply(parameter, lambda step=step: grad(step)).backward()
        if step == 2:  # gradients add up
            Entries.apply(parameter, lambda: grad(17)).backward()
        assert parameter.grad.is_sparse and parameter.grad.layout == torch.sparse_coo
        optimizer.step()
    return parameter.detach()


OPTIMIZERS = [
    (torch.optim.SparseAdam, {"lr": 0.1}),
    (torch.optim.SparseAdam, {"lr": 0.1, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"lr": 0.1, "foreach": True}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("case", **by_name)
def test_optimizers_take_sparse_gradients_as_of_a_plain_parameter(case, optimizer, options):
    dense = torch.randn(SHAPE, dtype=torch.float64)
    expected = trained(dense, optimizer, plain_sparse, **options)

    def body():
        table = sw.distribute_tensor(dense, case.mesh(), case.placements)
        result = trained(table, optimizer, lambda step: distributed(plain_sparse(step), case), **options)
        assert result.placements == table.placements
        assert_equal(result, expected)

    on_ranks(case, body)


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_a_replicated_table_takes_entries_of_different_ranks(optimizer):
    """As where ids are sharded by batch: the gradient is a Partial of each rank's entries."""
    case = Case("partial", 3, [0, 1, 2], SHAPE, [Replicate()])
    dense = torch.randn(SHAPE, dtype=torch.float64)
    parts = [[plain_sparse(3 * step + rank, n=rank * 4) for rank in range(3)] for step in range(20)]
    expected = trained(dense, optimizer, lambda step: sum(parts[step][1:], parts[step][0]), lr=0.1)

    def body(rank):
        mesh = case.mesh()
        table = sw.distribute_tensor(dense, mesh, [Replicate()])
        result = trained(
            table, optimizer, lambda step: DTensor.from_local(parts[step][rank], mesh, [Partial()]), lr=0.1
        )
        assert_equal(result, expected)

    run_ranks(3, body)


def test_empty_gradients_leave_the_table():
    case = TABLES[1]

    def body():
        dense = torch.randn(SHAPE, dtype=torch.float64)
        table = sw.distribute_tensor(dense, case.mesh(), case.placements)
        for optimizer in (torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad):
            result = trained(table, optimizer, lambda step: distributed(plain_sparse(n=0), case), lr=0.1)
            assert torch.equal(result.full_tensor(), table.full_tensor())

    on_ranks(case, body)


@pytest.mark.parametrize("case", **by_name)
def test_operators_of_plain_sparse_tensors(case):
    plain, other = plain_sparse(1), plain_sparse(2)
    dense = torch.randn(SHAPE, dtype=torch.float64)

    def body():
        sparse, second = distributed(plain, case), distributed(other, case)
        table = sw.distribute_tensor(dense, case.mesh(), case.placements)
        assert sparse.is_sparse and not table.is_sparse and type(sparse) is DTensor
        assert sparse.shape == plain.shape and sparse.sparse_dim() == 1 and sparse.dense_dim() == 1
        for compute in (
            lambda s, o, d: s,
            lambda s, o, d: s + o,
            lambda s, o, d: torch.add(s, o, alpha=3),
            lambda s, o, d: s - o,
            lambda s, o, d: -s * 2 / 3,
            lambda s, o, d: s.mul(torch.tensor(2.0)),
            lambda s, o, d: d + s,
            lambda s, o, d: d.sub(s, alpha=2),
            lambda s, o, d: d.clone().add_(s, alpha=-0.5),
            lambda s, o, d: s.clone().mul_(0.5).add_(o),
            lambda s, o, d: s.clone().zero_(),
            lambda s, o, d: s.clone().zero_().add_(o),
            lambda s, o, d: s.clone().copy_(o),
            lambda s, o, d: s.clone().neg_().div_(3),
            lambda s, o, d: s.coalesce(),
            lambda s, o, d: s.coalesce() + o.coalesce(),
            lambda s, o, d: s.pow(2),
            lambda s, o, d: s.abs().sqrt(),
            lambda s, o, d: s.square(),
            lambda s, o, d: s.float().double(),
            lambda s, o, d: s * d,
            lambda s, o, d: d.sparse_mask(s.coalesce()),
            lambda s, o, d: s.to_dense() * d,
            lambda s, o, d: torch.zeros_like(s),
            lambda s, o, d: s.detach(),
            lambda s, o, d: s.sum(),
            lambda s, o, d: s.norm(),
            lambda s, o, d: s.norm(1),
            lambda s, o, d: s.norm(float("inf")),
            lambda s, o, d: s.isnan().any(),
            lambda s, o, d: s.coalesce().values().sum(0),
            lambda s, o, d: torch.sparse_coo_tensor(s._indices(), s._values() * 2, s.shape),
            lambda s, o, d: s.new(s._indices(), s._values(), s.shape),
            lambda s, o, d: d.to_sparse(2),
        ):
            assert_equal(compute(sparse, second, table), compute(plain, other, dense))

    on_ranks(case, body)


@pytest.mark.parametrize("case", **by_name)
def test_indices_and_values_are_global(case):
    plain = plain_sparse(4)

    def body():
        sparse = distributed(plain, case).coalesce()
        assert sparse.is_coalesced()
        indices, values = sparse.indices(), sparse.values()
        assert type(indices) is type(values) is DTensor and sparse._nnz() == indices.shape[1] == len(values)
        if not is_member(sparse):
            assert len(values) == 0  # a rank outside the mesh has no values
            return
        rebuilt = torch.sparse_coo_tensor(indices.full_tensor(), values.full_tensor(), SHAPE)
        torch.testing.assert_close(rebuilt.to_dense(), plain.to_dense())
        again = torch.sparse_coo_tensor(indices, values, SHAPE)
        assert again.placements == sparse.placements  # entries did not move
        # Computed indices are not known to come from this tensor: their entries may move.
        assert_equal(torch.sparse_coo_tensor(indices + 0, values, SHAPE), plain)
        assert_equal(torch.sparse_coo_tensor(indices.clone().add_(0), values, SHAPE), plain)

    on_ranks(case, body)


def test_indices_and_values_of_a_row_sharded_tensor_are_sharded_alike():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        plain = torch.sparse_coo_tensor([[0, 10, 9, 10]], torch.arange(24.0).view(4, 6), SHAPE)
        sparse = distributed(plain, Case("", 3, [0, 1, 2], SHAPE, [Shard(0, sizes=[4, 2, 5])]))
        assert sparse._indices().placements == (Shard(1, sizes=[1, 0, 3]),)
        assert sparse._values().placements == (Shard(0, sizes=[1, 0, 3]),)
        assert sparse.to_local().shape == ([4, 2, 5][rank], 6)
        with sw.CommDebugMode() as comm:
            sparse.clone()._values()
            (sparse * 2)._values()
            again = torch.sparse_coo_tensor(sparse._indices(), sparse._values(), SHAPE)
            sw.zeros(SHAPE, device_mesh=mesh, placements=sparse.placements).add_(again)
        assert comm.get_total_counts() == 0  # the counts are known

    run_ranks(3, body)


TARGETS = [
    [Replicate()],
    [Shard(0)],
    [Shard(0, sizes=[3, 0, 8])],
    [Shard(1)],
    [Partial()],
    [EnumerableShard(GRID)],
    [EnumerableShard(COLUMNS)],
]


@pytest.mark.parametrize("source", TARGETS, ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_redistribution_keeps_every_entry(source, target):
    plain = plain_sparse(5)

    def body(rank):
        case = Case("", 3, [2, 0, 1], SHAPE, source)
        sparse = distributed(plain, case)
        if source[0].is_partial():
            parts = [plain_sparse(5 + seed) for seed in range(3)]
            sparse = DTensor.from_local(parts[rank], case.mesh(), source)
            moved = sparse.redistribute(placements=target)
            assert_equal(moved, sum(parts[1:], parts[0]))
        else:
            moved = sparse.redistribute(placements=target)
            assert_equal(moved, plain)
        assert moved.is_sparse and list(moved.placements) == target
        for piece, (_, sizes) in zip(sw._C.to_pieces(moved), sw._C.boxes_of(moved), strict=True):
            assert list(piece.shape) == sizes
            torch._validate_sparse_coo_tensor_args(piece._indices(), piece._values(), piece.shape)
        assert_equal(
            moved._values().sum(0), moved.to_dense().sum(0).full_tensor()
        )  # as many entries wherever rows are shared

    run_ranks(3, body)


def test_clip_grad_norm_counts_entries_of_one_row_together():
    case = TABLES[2]
    plain = plain_sparse(6)

    def body():
        parameter = nn.Parameter(sw.distribute_tensor(torch.zeros(SHAPE).double(), case.mesh(), case.placements))
        parameter.grad = distributed(plain, case)
        total = nn.utils.clip_grad_norm_([parameter], 0.5)
        torch.testing.assert_close(total.full_tensor(), plain.norm())
        assert_equal(parameter.grad, plain * (0.5 / (plain.norm() + 1e-6)))

    on_ranks(case, body)


@pytest.mark.parametrize("copied", [through_pickle, through_save, copy.deepcopy], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", **by_name)
def test_copies_and_pickles(case, copied):
    def body():
        for sparse in (distributed(plain_sparse(7), case), distributed(plain_sparse(7), case).coalesce()):
            again = copied(sparse)
            assert again.is_sparse and again.placements == sparse.placements
            assert again.is_coalesced() == sparse.is_coalesced() and again.sparse_dim() == 1
            assert_equal(again, plain_sparse(7))
            again.mul_(2)
            assert_equal(sparse, plain_sparse(7))

    on_ranks(case, body)


def test_a_parameter_with_a_sparse_gradient_is_deep_copied():
    case = TABLES[1]

    def body():
        parameter = nn.Parameter(sw.distribute_tensor(torch.zeros(SHAPE).double(), case.mesh(), case.placements))
        parameter.grad = distributed(plain_sparse(8), case)
        assert_equal(copy.deepcopy(parameter).grad, plain_sparse(8))

    on_ranks(case, body)


def test_repr_shows_the_local_part():
    def body(rank):
        sparse = distributed(plain_sparse(9), Case("", 2, [0, 1], SHAPE, [Shard(0)]))
        text = repr(sparse)
        assert "indices=" in text and "Shard(0)" in text and "layout=torch.sparse_coo" in text

    run_ranks(2, body)


def test_rounded_division_reduces_terms_first():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))

        def of_two_terms():
            """At one place, one on each rank."""
            places = sw.distribute_tensor(torch.zeros(1, 2, dtype=torch.int64), mesh, [Shard(1)])
            values = sw.distribute_tensor(torch.ones(2), mesh, [Shard(0)])
            tensor = torch.sparse_coo_tensor(places, values, (3,))
            assert tensor.placements == (Partial(),)
            return tensor

        for mode in ("floor", "trunc"):
            result = torch.div(of_two_terms(), 2, rounding_mode=mode).to_dense()
            torch.testing.assert_close(result.full_tensor(), torch.tensor([1.0, 0, 0]))
            with pytest.raises(ValueError, match="cannot write to a Partial"):
                of_two_terms().div_(2, rounding_mode=mode)
        assert (of_two_terms() / 2).placements == (Partial(),)

    run_ranks(2, body)


MISTAKES = [
    # what, words of the error
    (lambda s, d: s.clamp(0, 1), NotImplementedError, "[aten::clamp"),
    (lambda s, d: s.clamp(0, 1), NotImplementedError, "to_dense()"),
    (lambda s, d: torch.mm(s, d.t()), NotImplementedError, "[aten::mm]"),
    (lambda s, d: torch.cat([d, s]), NotImplementedError, "[aten::cat]"),
    (lambda s, d: s[0], NotImplementedError, "to_dense()"),
    (lambda s, d: s.values(), ValueError, "not coalesced"),
    (lambda s, d: s.sqrt_(), ValueError, "uncoalesced"),
    (lambda s, d: s + d, RuntimeError, "add(sparse, dense) is not supported"),
    (lambda s, d: s.sum(0), NotImplementedError, "over all dims"),
    (lambda s, d: d + plain_sparse(), ValueError, "next to a DTensor"),
    (lambda s, d: d[:1] + s, NotImplementedError, "not broadcast"),
    (lambda s, d: s.redistribute(placements=[Partial("max")]), ValueError, "its parts are sums"),
    (lambda s, d: torch.sparse_coo_tensor(s._indices() + 9, s._values(), SHAPE), IndexError, "outside dim 0"),
    (lambda s, d: torch.sparse_coo_tensor(s._indices(), s._values()[:1], SHAPE), ValueError, "do not make a tensor"),
    (lambda s, d: torch.sparse_coo_tensor(s._indices(), torch.rand(7, 6).double(), SHAPE), ValueError, "next to"),
    (lambda s, d: torch.linalg.vector_norm(s, -1), ValueError, "order -1"),
]


@pytest.mark.parametrize(("call", "kind", "words"), MISTAKES)
def test_errors_name_a_way_out(call, kind, words):
    case = TABLES[1]

    def body():
        sparse = distributed(plain_sparse(10), case)
        table = sw.distribute_tensor(torch.ones(SHAPE).double(), case.mesh(), case.placements)
        with pytest.raises(kind) as error:
            call(sparse, table)
        assert words in str(error.value)

    on_ranks(case, body)
