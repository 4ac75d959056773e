"""Fused optimizers against torch.optim's, or their formulas written out: decay, rates per table, row-wise state, LAMB, rounding at
random, and state that moves to other layouts, through torch.distributed.checkpoint, too."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
from fused_optimizer_program import MAKERS as CHECKPOINTED
from layouts import TABLE_SHAPE, TABLES
from torch import nn
from torchrun import expect_all_well

import shardwise as sw
from shardwise import EnumerableShard, Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.testing import run_ranks

N_ROWS, N_COLUMNS = TABLE_SHAPE
by_name = {"argvalues": TABLES, "ids": [case.name for case in TABLES]}
ALL = torch.arange(N_ROWS)


def dense_table(seed=1):
    return torch.randn(TABLE_SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_ids(step, n=12):
    """Rows 9 and 10 are never named."""
    return torch.randint(0, N_ROWS - 2, (n,), generator=torch.Generator().manual_seed(step))


def step_with(table, ids):
    """A backward whose gradient differs from row to row."""
    rows = F.embedding(ids, table)
    weights = torch.arange(1, N_COLUMNS + 1, dtype=rows.dtype)
    if isinstance(rows, sw.DTensor):
        weights = sw.distribute_tensor(weights, rows.device_mesh, [Replicate()] * rows.device_mesh.ndim)
    (rows * weights).square().sum().backward()


def assert_equal(tensor, plain, **tolerances):
    full = tensor.full_tensor()
    if tensor.device_mesh.get_coordinate() is not None:
        torch.testing.assert_close(full, plain, **(tolerances or {"rtol": 1e-9, "atol": 1e-9}))


def trained_plain(make, ids_at, n_steps=4):
    table = nn.Parameter(dense_table())
    optimizer = make([table])
    for step in range(n_steps):
        optimizer.zero_grad()
        step_with(table, ids_at(step))
        optimizer.step()
    return table.detach()


def expect_on(case, make, expected, ids_at, n_steps=4):
    def body(rank):
        mesh = case.mesh()
        for placement in (Replicate(), Shard(0)):
            table = nn.Parameter(sw.distribute_tensor(dense_table(), mesh, case.placements))
            optimizer = make([table])
            for step in range(n_steps):
                step_with(table, sw.distribute_tensor(ids_at(step), mesh, [placement] * mesh.ndim))
            assert table.grad is None
            assert_equal(table.detach(), expected)
            optimizer.close()

    run_ranks(case.n_ranks, body)


# All rows are named in every step, as torch's dense optimizers move all of them.
AS_TORCHS = {
    "SGD": (sw.optim.FusedSGD, torch.optim.SGD, {"lr": 0.01, "weight_decay": 0.3}),
    "Adagrad": (sw.optim.FusedAdagrad, torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-8, "weight_decay": 0.3}),
    "Adam": (sw.optim.FusedAdam, torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0, "weight_decay": 0.3}),
    "AdamW": (
        lambda tables, **options: sw.optim.FusedAdam(tables, decoupled_weight_decay=True, **options),
        torch.optim.AdamW,
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0, "weight_decay": 0.3},
    ),
}


@pytest.mark.parametrize("name", AS_TORCHS)
@pytest.mark.parametrize("case", **by_name)
def test_weights_decay_as_torchs(case, name):
    fused, judge, options = AS_TORCHS[name]
    expected = trained_plain(lambda tables: judge(tables, **options), lambda step: ALL)
    expect_on(case, lambda tables: fused(tables, **options), expected, lambda step: ALL)


class RowWise(torch.optim.Optimizer):
    """Row-wise Adagrad and Adam, and LAMB by rows, written out; rows without ids stand still."""

    def __init__(self, tables, kind, lr, eps, betas=(0.9, 0.999), weight_decay=0.0, decoupled=False):
        super().__init__(tables, {})
        self.kind, self.lr, self.eps, self.betas = kind, lr, eps, betas
        self.weight_decay, self.decoupled, self.n_steps = weight_decay, decoupled, 0

    @torch.no_grad()
    def step(self):
        (table,) = self.param_groups[0]["params"]
        state, (beta1, beta2) = self.state[table], self.betas
        named = table.grad.abs().sum(1) != 0
        self.n_steps += 1
        beside = self.decoupled or "lamb" in self.kind
        grad = table.grad + (0 if beside else self.weight_decay) * table
        squares = grad**2 if self.kind == "lamb" else (grad**2).mean(1, keepdim=True)
        if not state:
            state["m"], state["v"] = torch.zeros_like(grad), torch.zeros_like(squares)
        if self.kind == "adagrad":
            v = state["v"] + squares
            step = grad / (v.sqrt() + self.eps)
        else:
            m, v = beta1 * state["m"] + (1 - beta1) * grad, beta2 * state["v"] + (1 - beta2) * squares
            first, second = 1 - beta1**self.n_steps, 1 - beta2**self.n_steps
            eps = self.eps if "lamb" in self.kind else self.eps / math.sqrt(second)
            step = m / first / ((v / second).sqrt() + eps)
            state["m"] = torch.where(named[:, None], m, state["m"])
        state["v"] = torch.where(named[:, None], v, state["v"])
        if beside:
            step = step + self.weight_decay * table
        if "lamb" in self.kind:
            step = step * (table.norm(dim=1) / step.norm(dim=1).clamp_min(1e-300))[:, None]
        table[named] -= self.lr * step[named]


BY_FORMULA = {
    "row-wise Adagrad": (
        "adagrad",
        lambda tables, **options: sw.optim.FusedAdagrad(tables, row_wise=True, **options),
        {"lr": 0.1, "eps": 1e-4, "weight_decay": 0.1},
    ),
    "row-wise Adam": (
        "adam",
        lambda tables, **options: sw.optim.FusedAdam(tables, row_wise=True, **options),
        {"lr": 0.1, "eps": 1e-4, "betas": (0.8, 0.9), "weight_decay": 0.1},
    ),
    "LAMB": ("lamb", sw.optim.FusedLAMB, {"lr": 0.1, "eps": 1e-4, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "row-wise LAMB": (
        "row-wise lamb",
        lambda tables, **options: sw.optim.FusedLAMB(tables, row_wise=True, **options),
        {"lr": 0.1, "eps": 1e-4, "betas": (0.8, 0.9), "weight_decay": 0.1},
    ),
}


@pytest.mark.parametrize("name", BY_FORMULA)
@pytest.mark.parametrize("case", **by_name)
def test_steps_are_the_formulas_on_every_layout(case, name):
    kind, fused, options = BY_FORMULA[name]
    expected = trained_plain(lambda tables: RowWise(tables, kind, **options), some_ids)
    expect_on(case, lambda tables: fused(tables, **options), expected, some_ids)


def test_decoupled_decay_of_row_wise_kinds():
    for kind, fused in (("adagrad", sw.optim.FusedAdagrad), ("adam", sw.optim.FusedAdam)):
        options = {"lr": 0.1, "eps": 1e-4, "weight_decay": 0.2}
        expected = trained_plain(
            lambda tables, kind=kind, options=options: RowWise(tables, kind, decoupled=True, **options), some_ids
        )
        expect_on(
            TABLES[4],
            lambda tables, fused=fused, options=options: fused(
                tables, row_wise=True, decoupled_weight_decay=True, **options
            ),
            expected,
            some_ids,
        )


def test_each_group_of_tables_has_its_own_numbers():
    rates = {0.1: 0.0, 0.3: 0.5}
    expected = {
        lr: trained_plain(lambda t, lr=lr, decay=decay: RowWise(t, "lamb", lr, 1e-4, weight_decay=decay), some_ids)
        for lr, decay in rates.items()
    }

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        tables = {lr: nn.Parameter(sw.distribute_tensor(dense_table(), mesh, [Shard(0)])) for lr in rates}
        groups = [{"params": [tables[lr]], "lr": lr, "weight_decay": decay} for lr, decay in rates.items()]
        optimizer = sw.optim.FusedLAMB(groups, eps=1e-4)
        for step in range(4):
            for table in tables.values():
                step_with(table, sw.distribute_tensor(some_ids(step), mesh, [Shard(0)]))
        for lr, table in tables.items():
            assert_equal(table.detach(), expected[lr])
        optimizer.param_groups[0]["lr"] = 0.0
        before = tables[0.1].full_tensor()
        step_with(tables[0.1], sw.distribute_tensor(some_ids(5), mesh, [Shard(0)]))
        assert_equal(tables[0.1].detach(), before)

    run_ranks(3, body)


MAKERS = {
    **CHECKPOINTED,
    "SGD, rounded at random": lambda tables: sw.optim.FusedSGD(tables, lr=0.01, stochastic_rounding=True, seed=3),
}
SPLIT = EnumerableShard([Piece((0, 0), (4, 4), 1), Piece((0, 4), (4, 2), 0), Piece((4, 0), (7, 6), 2)])


@pytest.mark.parametrize(
    ("saved_as", "loaded_as"), [(Shard(0), SPLIT), (SPLIT, Shard(1)), (Shard(1), Shard(0))], ids=str
)
@pytest.mark.parametrize("name", MAKERS)
def test_training_goes_on_from_state_in_another_layout(name, saved_as, loaded_as):
    dtype = torch.bfloat16 if "random" in name else torch.float64

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))

        def new(placement, dense):
            table = nn.Parameter(sw.distribute_tensor(dense, mesh, [placement]))
            return table, MAKERS[name]([table])

        def train(table, steps):
            for step in steps:
                # Each row once: sums of several are rounded in an order that depends on the layout.
                ids = ALL[:9].roll(step) if dtype == torch.bfloat16 else some_ids(step)
                step_with(table, sw.distribute_tensor(ids, mesh, [Replicate()]))

        start = dense_table().to(dtype)
        whole, of_whole = new(saved_as, start)
        train(whole, range(4))
        first, optimizer = new(saved_as, start)
        train(first, range(2))
        memory = io.BytesIO()
        torch.save(optimizer.state_dict(), memory)
        memory.seek(0)
        second, resumed = new(loaded_as, first.detach().full_tensor())
        resumed.load_state_dict(torch.load(memory, weights_only=False))
        train(second, range(2, 4))
        tolerances = {"rtol": 0, "atol": 0} if dtype == torch.bfloat16 else {"rtol": 1e-9, "atol": 1e-9}
        assert_equal(second.detach(), whole.detach().full_tensor(), **tolerances)
        for each in (of_whole, optimizer, resumed):
            each.close()

    run_ranks(3, body)


def expect_the_same_steps(train, tables, optimizers):
    for table in tables:
        train(table, range(2, 4))
    first, second = tables
    assert_equal(second.detach(), first.detach().full_tensor())
    for optimizer in optimizers:
        optimizer.close()


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_training_goes_on_from_state_on_another_mesh(name):
    def body(rank):
        def new(mesh, placements, dense):
            table = nn.Parameter(sw.distribute_tensor(dense, mesh, placements))
            return table, CHECKPOINTED[name]([table])

        def train(table, steps):
            for step in steps:
                mesh = table.device_mesh
                step_with(table, sw.distribute_tensor(some_ids(step), mesh, [Replicate()] * mesh.ndim))

        line, grid = sw.init_device_mesh("cpu", (4,)), sw.init_device_mesh("cpu", (2, 2))
        first, optimizer = new(line, [Shard(0)], dense_table())
        train(first, range(2))
        second, resumed = new(grid, [Replicate(), Shard(0)], first.detach().full_tensor())
        resumed.load_state_dict(optimizer.state_dict())
        expect_the_same_steps(train, [first, second], [optimizer, resumed])

    run_ranks(4, body)


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_training_goes_on_from_full_plain_state(name):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))

        def new(dense):
            table = nn.Parameter(sw.distribute_tensor(dense, mesh, [Shard(0)]))
            return table, CHECKPOINTED[name]([table])

        def train(table, steps):
            for step in steps:
                step_with(table, sw.distribute_tensor(some_ids(step), mesh, [Replicate()]))

        first, optimizer = new(dense_table())
        train(first, range(2))
        whole = optimizer.state_dict()
        state = {
            key: value.full_tensor() if isinstance(value, sw.DTensor) else value
            for key, value in whole["state"][0].items()
        }
        plain = {**whole, "state": {0: state}}
        second, resumed = new(first.detach().full_tensor())
        resumed.load_state_dict(plain)
        expect_the_same_steps(train, [first, second], [optimizer, resumed])

    run_ranks(2, body)


@pytest.mark.parametrize("is_plain", [False, True])
def test_state_of_another_shape_is_an_error_with_nothing_loaded(is_plain):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        tables = [nn.Parameter(sw.distribute_tensor(dense_table(), mesh, [Shard(0)])) for _ in range(2)]
        optimizer = sw.optim.FusedAdagrad(tables, lr=0.1)
        step_with(tables[0], sw.distribute_tensor(ALL, mesh, [Replicate()]))
        own = optimizer.state[tables[0]]["sum"]
        before = own.full_tensor()
        other = torch.zeros(N_ROWS)
        if not is_plain:
            other = sw.distribute_tensor(other, mesh, [Shard(0)])
        saved = optimizer.state_dict()
        zeros = torch.zeros_like(own)
        saved = {
            "state": {0: {"sum": zeros}, 1: {"sum": other}},
            "param_groups": [{**saved["param_groups"][0], "lr": 0.2}],
        }
        words = rf'the state "sum" of parameter 1 has shape \[{N_ROWS}\]'
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(saved)
        assert optimizer.state[tables[0]]["sum"] is own and optimizer.param_groups[0]["lr"] == 0.1
        assert_equal(own, before)
        optimizer.close()

    run_ranks(2, body)


def test_checkpoints_load_on_other_numbers_of_ranks(tmp_path):
    expect_all_well("fused_optimizer_program.py", 3, "save", tmp_path)
    expect_all_well("fused_optimizer_program.py", 2, "load", tmp_path)
    expect_all_well("fused_optimizer_program.py", 1, "load", tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_at_random_keeps_small_steps(dtype):
    """A thousand steps of a hundredth of the distance between two numbers: to the nearest they all are lost."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ids = sw.distribute_tensor(torch.arange(40), mesh, [Replicate()])
        step = torch.finfo(dtype).eps / 100

        def train(**options):
            table = nn.Parameter(sw.distribute_tensor(torch.ones(40, 32, dtype=dtype), mesh, [Shard(0)]))
            optimizer = sw.optim.FusedSGD([table], lr=step, **options)
            for _ in range(100):
                F.embedding(ids, table).sum().backward()
            optimizer.close()
            return table.detach().full_tensor()

        assert torch.equal(train(), torch.ones(40, 32, dtype=dtype))
        moved = train(stochastic_rounding=True)
        # The numbers below 1 are half as far apart as those above: a step is a fiftieth there.
        assert (1 - moved.double()).mean().item() == pytest.approx(100 * step, rel=0.05)
        assert torch.equal(moved, train(stochastic_rounding=True))
        assert not torch.equal(moved, train(stochastic_rounding=True, seed=1))

    run_ranks(2, body)


def test_tables_of_one_optimizer_are_rounded_differently():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ids = sw.distribute_tensor(torch.arange(8), mesh, [Replicate()])
        tables = [
            nn.Parameter(sw.distribute_tensor(torch.ones(8, 16, dtype=torch.bfloat16), mesh, [Shard(0)]))
            for _ in range(2)
        ]
        optimizer = sw.optim.FusedSGD(tables, lr=1e-3, stochastic_rounding=True)
        for table in tables:
            F.embedding(ids, table).sum().backward()
        assert not torch.equal(tables[0].full_tensor(), tables[1].full_tensor())
        optimizer.close()

    run_ranks(2, body)


@pytest.mark.parametrize("order", [1, -1], ids=["pieces outside", "pieces inside"])
def test_tables_in_pieces_need_a_mesh_of_one_dim(order):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        placements = [sw.RaggedShard((0,), (1, 1)), Replicate()][::order]
        table = nn.Parameter(sw.distribute_tensor(torch.ones(4, 2), mesh, placements))
        with pytest.raises(NotImplementedError, match=r"RaggedShard.* if it is a RaggedShard, on a mesh of one dim"):
            sw.optim.FusedSGD([table])
        F.embedding(sw.distribute_tensor(torch.tensor([0]), mesh, [Replicate()] * 2), table).sum().backward()
        assert torch.equal(table.grad.full_tensor()[:, 0], torch.tensor([1.0, 0, 0, 0]))

    run_ranks(4, body)


def test_the_number_of_steps_does_not_depend_on_the_default_dtype():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = nn.Parameter(sw.ones(4, 2, device_mesh=mesh, dtype=torch.float32))
        optimizer = sw.optim.FusedSGD([table])
        state = optimizer.state_dict()
        state["state"][0]["step"] = torch.tensor(257, dtype=torch.int64)
        optimizer.load_state_dict(state)
        assert optimizer.state_dict()["state"][0]["step"].item() == 257

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        run_ranks(2, body)
    finally:
        torch.set_default_dtype(before)


BAD = {
    "weight_decay is -1": lambda t: sw.optim.FusedSGD(t, weight_decay=-1.0),
    "beta2 is 1": lambda t: sw.optim.FusedLAMB(t, betas=(0.9, 1.0)),
    "eps is -1": lambda t: sw.optim.FusedAdam(t, eps=-1.0, row_wise=True),
}


@pytest.mark.parametrize("words", BAD)
def test_numbers_out_of_range_are_said_on_every_rank(words):
    failed = []

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = nn.Parameter(sw.distribute_tensor(torch.rand(4, 2), mesh, [Shard(0)]))
        with pytest.raises(ValueError, match=words):
            BAD[words]([table])
        failed.append(rank)

    run_ranks(2, body)
    assert sorted(failed) == [0, 1]
