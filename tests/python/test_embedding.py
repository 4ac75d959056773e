"""Embedding tables through torch.nn.functional: every layout of the table and of ids, both exchanges, sparse gradients, optimizers of
torch and fused ones, max_norm, bad input."""

import contextlib
import copy
import io

import pytest
import torch
import torch.nn.functional as F
from layouts import TABLE_SHAPE, TABLES
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

torch.sparse.check_sparse_tensor_invariants.disable()  # said, or torch warns

N_ROWS, N_COLUMNS = TABLE_SHAPE
EXCHANGES = ["auto", "reduce_scatter", "all_to_all"]
by_name = {"argvalues": TABLES, "ids": [case.name for case in TABLES]}


def dense_table():
    return torch.randn(TABLE_SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def ids_of(step, n=12):
    """Rows 9 and 10 are never named."""
    return torch.randint(0, N_ROWS - 2, (n,), generator=torch.Generator().manual_seed(step))


def layouts_of_ids(mesh):
    """Replicated, sharded by batch, and sharded along one dim of the mesh."""
    yield [Replicate()] * mesh.ndim
    yield [Shard(0)] * mesh.ndim
    if mesh.ndim > 1:
        yield [Shard(0), Replicate()]
        yield [Replicate(), Shard(0)]


def assert_equal(tensor, plain):
    full = tensor.full_tensor()
    if tensor.device_mesh.get_coordinate() is not None:
        torch.testing.assert_close(full.to_dense(), plain.to_dense(), rtol=1e-10, atol=1e-10)


def on_ranks(case, body):
    run_ranks(case.n_ranks, lambda rank: body())


def looked_up(table, ids, pooled, sparse=False):
    if not pooled:
        return F.embedding(ids, table, padding_idx=2, sparse=sparse)
    return F.embedding_bag(
        ids.view(-1, 3), table, mode="mean" if pooled == "mean" else "sum", sparse=sparse, padding_idx=2
    )


def train(table, ids_at, optimizer, pooled, n_steps=4, sparse=False):
    """Steps with a loss whose gradient differs from row to row."""
    for step in range(n_steps):
        optimizer.zero_grad()
        rows = looked_up(table, ids_at(step), pooled, sparse)
        weights = torch.arange(1, N_COLUMNS + 1, dtype=torch.float64)
        if isinstance(rows, sw.DTensor):
            weights = sw.distribute_tensor(weights, rows.device_mesh, [Replicate()] * rows.device_mesh.ndim)
        (rows * weights).square().sum().backward()
        optimizer.step()
    return table.detach()


@pytest.mark.parametrize("pooled", ["", "sum", "mean"])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SparseAdam, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
        (torch.optim.Adagrad, {"lr": 0.1}),
    ],
    ids=["SparseAdam", "SGD", "Adagrad"],
)
@pytest.mark.parametrize("case", **by_name)
def test_sparse_gradients_train_as_those_of_a_plain_table(case, optimizer, options, pooled):
    plain = nn.Parameter(dense_table())
    expected = train(plain, ids_of, optimizer([plain], **options), pooled, sparse=True)

    def body():
        mesh = case.mesh()
        for placements in layouts_of_ids(mesh):
            table = nn.Parameter(sw.distribute_tensor(dense_table(), mesh, case.placements))
            result = train(
                table,
                lambda step, placements=placements: sw.distribute_tensor(ids_of(step), mesh, placements),
                optimizer([table], **options),
                pooled,
                sparse=True,
            )
            assert table.grad.is_sparse and table.grad.layout == torch.sparse_coo
            assert_equal(result, expected)

    on_ranks(case, body)


FUSED = [
    (sw.optim.FusedSGD, torch.optim.SGD, {"lr": 0.01}),
    (sw.optim.FusedAdagrad, torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-8}),
    (sw.optim.FusedAdam, torch.optim.SparseAdam, {"lr": 0.1, "betas": (0.8, 0.9)}),
]


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("pooled", ["", "sum", "mean"])
@pytest.mark.parametrize(("fused", "judge", "options"), FUSED, ids=["SGD", "Adagrad", "Adam"])
@pytest.mark.parametrize("case", **by_name)
def test_fused_optimizers_train_as_torchs(case, fused, judge, options, pooled, exchange):
    plain = nn.Parameter(dense_table())
    expected = train(plain, ids_of, judge([plain], **options), pooled, sparse=True)

    def body():
        mesh = case.mesh()
        for placements in layouts_of_ids(mesh):
            table = nn.Parameter(sw.distribute_tensor(dense_table(), mesh, case.placements))
            optimizer = fused([table], **options)
            with sw.lookup_exchange(exchange):
                result = train(
                    table,
                    lambda step, placements=placements: sw.distribute_tensor(ids_of(step), mesh, placements),
                    optimizer,
                    pooled,
                )
            assert table.grad is None
            assert_equal(result, expected)

    on_ranks(case, body)


@pytest.mark.parametrize(
    "make",
    [
        lambda tables: sw.optim.FusedAdagrad(tables, lr=0.1, row_wise=True),
        lambda tables: sw.optim.FusedAdagrad(tables, lr=0.1),
        lambda tables: sw.optim.FusedAdam(tables, lr=0.1),
        lambda tables: sw.optim.FusedSGD(tables, lr=0.1),
    ],
    ids=["row-wise Adagrad", "Adagrad", "Adam", "SGD"],
)
def test_a_fused_optimizer_goes_on_from_its_state_dict(make):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))

        def ids_at(step):
            return sw.distribute_tensor(ids_of(step), mesh, [Shard(0)])

        def new_table(values, placement):
            return nn.Parameter(sw.distribute_tensor(values, mesh, [placement]))

        whole = new_table(dense_table(), Shard(0))
        train(whole, ids_at, make([whole]), "", n_steps=4)

        first = new_table(dense_table(), Shard(0))
        optimizer = make([first])
        train(first, ids_at, optimizer, "", n_steps=2)
        memory = io.BytesIO()
        torch.save(optimizer.state_dict(), memory)
        memory.seek(0)
        second = new_table(first.detach().full_tensor(), Shard(0, sizes=[1, 0, 10]))  # other shards
        resumed = make([second])
        resumed.load_state_dict(torch.load(memory, weights_only=False))
        train(second, lambda step: ids_at(step + 2), resumed, "", n_steps=2)
        assert_equal(second.detach(), whole.detach().full_tensor())

    run_ranks(3, body)


def test_schedules_change_the_rate_of_fused_optimizers():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ids = sw.distribute_tensor(torch.tensor([1]), mesh, [Replicate()])
        table = nn.Parameter(sw.distribute_tensor(torch.zeros(4, 1), mesh, [Shard(0)]))
        optimizer = sw.optim.FusedSGD([table], lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for _ in range(3):
            F.embedding(ids, table).sum().backward()
            optimizer.step()
            schedule.step()
        assert table.full_tensor()[1].item() == -(1 + 0.5 + 0.25)
        optimizer.close()
        F.embedding(ids, table).sum().backward()
        assert table.grad is not None and table.full_tensor()[1].item() == -1.75

    run_ranks(2, body)


def test_fused_optimizers_come_all_or_none_and_go_with_their_owner():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ids = sw.distribute_tensor(torch.tensor([1]), mesh, [Replicate()])

        def gives_gradient(table):
            table.grad = None
            F.embedding(ids, table).sum().backward()
            return table.grad is not None

        table = nn.Parameter(sw.distribute_tensor(torch.zeros(4, 1), mesh, [Shard(0)]))
        with pytest.raises(TypeError, match=r"got a torch\.Tensor"):
            sw.optim.FusedSGD([table, nn.Parameter(torch.rand(4, 1))])
        assert gives_gradient(table)
        optimizer = sw.optim.FusedSGD([table])
        assert not gives_gradient(table)
        with pytest.raises(ValueError, match="has a fused optimizer already"):
            sw.optim.FusedSGD([table])
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.deepcopy(optimizer)
        table.data = table.data.double()
        with pytest.raises(ValueError, match="Make a new optimizer for this table"):
            F.embedding(ids, table)
        del optimizer
        assert gives_gradient(table)

    run_ranks(2, body)


def test_loaded_numbers_are_used_and_state_keeps_its_dtype():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ids = sw.distribute_tensor(torch.tensor([1, 1, 3]), mesh, [Shard(0)])

        def new():
            return nn.Parameter(sw.distribute_tensor(torch.full((4, 2), 0.3, dtype=torch.bfloat16), mesh, [Shard(0)]))

        first, second = new(), new()
        saved = sw.optim.FusedAdam([first], lr=0.1, betas=(0.5, 0.6))
        loaded = sw.optim.FusedAdam([second])
        F.embedding(ids, first).sum().backward()
        second.data.copy_(first.data)
        loaded.load_state_dict(saved.state_dict())
        assert loaded.state[second]["exp_avg"].dtype == torch.float32
        for table in (first, second):
            F.embedding(ids, table).sum().backward()
        assert torch.equal(first.full_tensor(), second.full_tensor())

    run_ranks(2, body)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("case", **by_name)
def test_max_norm_shortens_the_rows_named_by_any_rank(case, pooled, norm_type):
    plain, ids = dense_table(), ids_of(3, n=6)

    def look_up(table, ids):
        if pooled:
            return F.embedding_bag(ids.view(-1, 2), table, max_norm=0.7, norm_type=norm_type, mode="sum")
        return F.embedding(ids, table, max_norm=0.7, norm_type=norm_type)

    expected = look_up(plain, ids)

    def body():
        mesh = case.mesh()
        for placements in layouts_of_ids(mesh):
            table = sw.distribute_tensor(dense_table(), mesh, case.placements)
            rows = look_up(table, sw.distribute_tensor(ids, mesh, placements))
            assert_equal(rows, expected)
            assert_equal(table, plain)

    on_ranks(case, body)


@pytest.mark.parametrize("order", [1, -1], ids=["pieces outside", "pieces inside"])
def test_max_norm_counts_replicas_of_pieces_once(order):
    plain, ids = dense_table(), ids_of(3, n=6)
    expected = F.embedding(ids, plain, max_norm=1.8)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        table = sw.distribute_tensor(dense_table(), mesh, [sw.RaggedShard((0, 1), (1, 2)), Replicate()][::order])
        rows = F.embedding(sw.distribute_tensor(ids, mesh, [Replicate()] * 2), table, max_norm=1.8)
        assert_equal(rows, expected)
        assert_equal(table, plain)

    run_ranks(4, body)


@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_gradients_of_weights_of_bags_in_a_table_that_is_partial(reduce_op):
    terms = [dense_table(), dense_table().square()]
    plain, ids = (terms[0] + terms[1]) / (2 if reduce_op == "avg" else 1), ids_of(1).view(-1, 3)
    weights = torch.linspace(-1, 2, ids.numel(), dtype=torch.float64).view_as(ids)
    scale = torch.arange(1, N_COLUMNS + 1, dtype=torch.float64)

    def look_up(ids, table, weights, scale):
        rows = F.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")
        (rows * scale).sum().backward()
        return weights.grad

    expected = look_up(ids, plain, weights.clone().requires_grad_(), scale)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.DTensor.from_local(terms[rank], mesh, [sw.Partial(reduce_op)])
        own = [sw.distribute_tensor(each, mesh, [Replicate()]) for each in (ids, weights, scale)]
        assert_equal(look_up(own[0], table, own[1].requires_grad_(), own[2]), expected)

    run_ranks(2, body)


def test_column_results_come_in_table_order_whatever_the_order_of_ranks():
    table, ids = torch.arange(6 * 17.0).view(6, 17), torch.tensor([5, 0, 3])
    for ranks in ([2, 0, 1, 3], [1, 2, 3, 0], [3, 2, 1, 0]):  # cycles of three and four too

        def body(rank, ranks=ranks):
            mesh = sw.DeviceMesh("cpu", ranks)
            columns = sw.distribute_tensor(table, mesh, [Shard(1)])
            assert list(columns.to_local().shape) == [6, [5, 5, 5, 2][ranks.index(rank)]]
            for of_ids in (Replicate(), Shard(0)):
                rows = F.embedding(sw.distribute_tensor(ids, mesh, [of_ids]), columns)
                assert rows.placements == (Shard(1) if of_ids == Replicate() else Shard(0),)
                assert torch.equal(rows.full_tensor(), table[ids])

        run_ranks(4, body)


def test_empty_ids_give_empty_results():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        table = sw.distribute_tensor(torch.rand(5, 4), mesh, [Shard(0)]).requires_grad_()
        for of_ids in (Replicate(), Shard(0)):
            rows = F.embedding(sw.distribute_tensor(torch.empty(0, 2, dtype=torch.long), mesh, [of_ids]), table)
            assert rows.shape == (0, 2, 4)
            rows.sum().backward()
        assert not table.grad.full_tensor().any()

    run_ranks(3, body)


BAD = [
    (lambda table, ids: F.embedding(ids.float(), table), TypeError, "ids are Float. Use int64 or int32."),
    (lambda table, ids: F.embedding(ids + 5, table), IndexError, "id 9 is no row of the table: it has 5 rows"),
    (lambda table, ids: F.embedding(ids - 3, table), IndexError, "id -3 is no row of the table"),
    (lambda table, ids: F.embedding(ids, table.view(5, 2, 2)), ValueError, "has 3 dims. Give [rows, columns]."),
    (lambda table, ids: F.embedding(ids, table, max_norm=0.0), ValueError, "max_norm is 0"),
    (lambda table, ids: F.embedding(ids, table, max_norm=-1.0), ValueError, "max_norm is -1"),
    (
        lambda table, ids: F.embedding_bag(ids, table, sw.distribute_tensor(torch.tensor([0, 9]), table.device_mesh)),
        ValueError,
        "the last offset is 9, but there are 5 ids",
    ),
    (lambda table, ids: sw.lookup_exchange("fastest"), ValueError, 'exchange "fastest" is unknown'),
    (lambda table, ids: sw.lookup_exchange(links=[(-1, 1)]).__enter__(), ValueError, "a link of -1 us and 1 GB/s"),
    (lambda table, ids: sw.optim.FusedSGD([table], lr=-1.0), ValueError, "lr is -1"),
    (lambda table, ids: sw.optim.FusedSGD([torch.rand(4, 2)], lr=1.0), TypeError, "got a torch.Tensor of shape [4, 2]"),
]


@pytest.mark.parametrize(("call", "kind", "words"), BAD, ids=[words for _, _, words in BAD])
@pytest.mark.parametrize("of_ids", [Replicate(), Shard(0)], ids=str)
def test_bad_input_says_the_way_out_on_every_rank(call, kind, words, of_ids):
    failed = []

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        table = nn.Parameter(sw.distribute_tensor(torch.rand(5, 4), mesh, [Shard(0)]))
        ids = sw.distribute_tensor(torch.arange(5), mesh, [of_ids])
        with pytest.raises(kind) as error:
            call(table, ids)
        assert words in str(error.value)
        failed.append(rank)
        assert F.embedding(ids, table).shape == (5, 4)  # nothing is lost

    run_ranks(3, body)
    assert sorted(failed) == [0, 1, 2]


def test_a_scope_may_be_opened_within_itself():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.distribute_tensor(dense_table(), mesh, [Shard(0)])
        ids = sw.distribute_tensor(ids_of(0), mesh, [Replicate()])
        scope = sw.lookup_exchange("reduce_scatter")
        with scope:
            with scope:
                pass
            assert F.embedding(ids, table).placements == (sw.Partial(),)
            assert F.embedding(ids, table).redistribute(placements=[Replicate()]).placements == (Replicate(),)

    run_ranks(2, body)


def test_links_decide_between_the_exchanges():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.distribute_tensor(dense_table(), mesh, [Shard(0)])
        ids = sw.distribute_tensor(torch.arange(10_000) % len(dense_table()), mesh, [Shard(0)])

        def bytes_by(*args, **kwargs):
            with sw.lookup_exchange(*args, **kwargs), sw.CommDebugMode() as comm:
                F.embedding(ids, table)
            return comm.bytes_received()

        exchanged, reduced = bytes_by("all_to_all"), bytes_by("reduce_scatter")
        assert bytes_by(links=[(1.0, 10.0)]) == exchanged != reduced
        assert bytes_by(links=[(1e6, 10.0)]) == reduced

    run_ranks(2, body)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_table_without_columns_gives_rows_without_columns(exchange):
    def body():
        mesh = sw.init_device_mesh("cpu", (2,))
        pieces = sw.EnumerableShard([sw.ShardMetadata((0, 0), (2, 0), 0), sw.ShardMetadata((2, 0), (2, 0), 1)])
        for of_table in (Shard(0), Shard(1), Replicate(), pieces):
            for of_ids in (Replicate(), Shard(0)):
                table = sw.distribute_tensor(torch.zeros(4, 0), mesh, [of_table]).requires_grad_()
                with sw.lookup_exchange(exchange):
                    rows = F.embedding(sw.distribute_tensor(torch.tensor([3, 1, 3]), mesh, [of_ids]), table)
                    rows.sum().backward()
                assert rows.full_tensor().shape == (3, 0) and table.grad.shape == (4, 0)

    run_ranks(2, lambda rank: body())


def test_large_gradients_with_few_rows_are_dense():
    """Most of their memory was never touched. It is memory like any other, also in profiles."""
    ids = torch.arange(40) * 999
    weight, grad = torch.randn(40_000, 32), torch.randn(40, 32)
    dense = weight.clone().requires_grad_()
    F.embedding(ids, dense).backward(grad)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = nn.Parameter(sw.distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None))
        ours, rows_grad = (sw.distribute_tensor(x, mesh, [Replicate()], src_data_rank=None) for x in (ids, grad))
        for factor in (1, 2):  # the second gradient is added to the first one
            F.embedding(ours, table).backward(rows_grad)
            torch.testing.assert_close(table.grad.full_tensor(), factor * dense.grad)
        table.grad = None
        with torch.profiler.profile(profile_memory=True) if rank == 0 else contextlib.nullcontext() as profile:
            F.embedding(ours, table).backward(rows_grad)
        if rank == 0:
            assert sum(event.self_cpu_memory_usage for event in profile.key_averages()) >= table.grad.to_local().nbytes
        table.grad.add_(1)
        torch.testing.assert_close(table.grad.full_tensor(), dense.grad + 1)

    run_ranks(2, check)
