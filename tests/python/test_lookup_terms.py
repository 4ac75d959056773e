"""A lookup of replicated ids gives each rank its own rows. Moving that sends each row once, and reading it sends nothing."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard, testing
from shardwise import ShardMetadata as Piece

N_ROWS, N_COLUMNS = 20, 6
IDS = torch.randint(0, N_ROWS, (16, 3), generator=torch.Generator().manual_seed(0))
TABLE = torch.randn(N_ROWS, N_COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
GRID = [Piece((0, 0), (12, 6), 3), Piece((12, 0), (8, 4), 0), Piece((12, 4), (8, 2), 2)]
TABLES = {
    "rows": ((4,), [Shard(0)]),
    "uneven": ((4,), [Shard(0, sizes=[1, 0, 15, 4])]),
    "pieces": ((4,), [sw.EnumerableShard(GRID)]),
    "rows, replicated": ((2, 2), [Shard(0), Replicate()]),
    "rows, nested": ((2, 2), [Shard(0), Shard(0)]),
    "rows and columns": ((2, 2), [Shard(0), Shard(1)]),
}
USES = {
    "batch": [Shard(0)],
    "uneven batch": [Shard(0, sizes=[3, 0, 12, 1])],
    "ids of a sample": [Shard(1)],
    "columns": [Shard(2)],
    "whole": [Replicate()],
}


def run_ranks(n_ranks, body):
    """Runs `body` with rows sent once: most results here are small, and "auto" would reduce them."""

    def in_scope(rank):
        with sw.lookup_exchange("all_to_all"):
            body(rank)

    testing.run_ranks(n_ranks, in_scope)


def lay_out(table, shape, placements):
    mesh = sw.init_device_mesh("cpu", shape)
    return mesh, nn.Parameter(sw.distribute_tensor(table, mesh, placements, src_data_rank=None))


def dense_result():
    table = TABLE.clone().requires_grad_()
    F.embedding(IDS, table, padding_idx=2).sin().sum().backward()
    return F.embedding(IDS, TABLE), table.grad


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(("shape", "placements"), TABLES.values(), ids=TABLES.keys())
def test_rows_and_their_gradients_are_dense_however_they_are_used(shape, placements, use):
    rows, grad = dense_result()

    def check(rank):
        mesh, table = lay_out(TABLE, shape, placements)
        ids = sw.distribute_tensor(IDS, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)
        both = use * mesh.ndim if not use[0].is_shard() or mesh.ndim == 1 else [Shard(use[0].dim)] * mesh.ndim
        for wanted in [both] if mesh.ndim == 1 else [both, [both[0], Replicate()]]:
            table.grad = None
            got = F.embedding(ids, table, padding_idx=2)
            moved = got.redistribute(placements=wanted)
            moved.sin().sum().backward()
            assert moved.placements == tuple(wanted) and table.grad.placements == table.placements
            torch.testing.assert_close(moved.full_tensor(), rows)
            torch.testing.assert_close(table.grad.full_tensor(), grad)
            torch.testing.assert_close(got.full_tensor(), rows)  # may be used otherwise after that

    run_ranks(4, check)


def bytes_of(call):
    with sw.CommDebugMode() as mode:
        call()
    return mode.bytes_received()


def looked_up(table=TABLE, ids=IDS):
    """A table sharded by rows, and the rows of replicated ids in it."""
    mesh, ours = lay_out(table, (4,), [Shard(0)])
    replicated = sw.distribute_tensor(ids, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)
    return ours, F.embedding(replicated, ours)


def test_only_the_rows_that_a_rank_needs_are_sent_to_it():
    ids, table = torch.arange(4000) * 7 % 1000, torch.randn(1000, 64)

    def check(rank):
        mesh, ours = lay_out(table, (4,), [Shard(0)])
        replicated = sw.distribute_tensor(ids, mesh, [Replicate()], src_data_rank=None)
        sharded = sw.distribute_tensor(ids, mesh, [Shard(0)], src_data_rank=None)
        rows = []
        assert bytes_of(lambda: rows.append(F.embedding(replicated, ours))) == 0
        assert rows[0].placements == (Partial(),)
        assert bytes_of(lambda: rows[0].redistribute(placements=[Replicate()])) == 750 * 256
        assert bytes_of(lambda: rows[0].exp()) == 750 * 256
        # Requests are known: nothing but rows is sent, and in the backward nothing but their gradients.
        parts = []
        part = bytes_of(lambda: parts.append(rows[0].redistribute(placements=[Shard(0)])))
        by_hand = bytes_of(lambda: parts.append(F.embedding(sharded, ours)))
        assert part < by_hand
        losses = [each.square().sum() for each in parts]
        assert bytes_of(losses[0].backward) <= bytes_of(losses[1].backward)

    run_ranks(4, check)


@pytest.mark.parametrize(("n_ids", "sends_rows"), [(4000, True), (400, False)])
def test_auto_reduces_small_results(n_ids, sends_rows):
    """By default results of 1 MB are sent as rows, and results of 100 KB as terms, without a comparison of ids."""
    ids, table = torch.arange(n_ids) * 7 % 1000, torch.randn(1000, 64)

    def check(rank):
        with sw.lookup_exchange("auto"):
            rows = looked_up(table, ids)[1]
        n_owned = len(ids.unique()) // 4
        received = bytes_of(lambda: torch.testing.assert_close(rows.full_tensor(), F.embedding(ids, table)))
        assert (received == 3 * n_owned * 256) == sends_rows
        part = rows.redistribute(placements=[Shard(0)])
        torch.testing.assert_close(part.full_tensor(), F.embedding(ids, table))

    run_ranks(4, check)


def test_gradients_of_a_part_go_to_owners_without_requests():
    """... also where no move of the result found the rows that a rank has gradients of."""

    def check(rank):
        table, rows = looked_up()
        mesh = rows.device_mesh
        grad = sw.ones(rows.shape, dtype=rows.dtype, device_mesh=mesh, placements=[Shard(0)])
        with sw.CommDebugMode() as mode:
            rows.backward(grad)
        assert mode.get_total_counts() == 1
        expected = torch.zeros(N_ROWS).index_add_(0, IDS.reshape(-1), torch.ones(IDS.numel()))
        torch.testing.assert_close(table.grad.full_tensor()[:, 0].float(), expected)

    run_ranks(4, check)


READERS = {
    "print": print,
    "repr": repr,
    "to_local": lambda rows: rows.to_local(),
    "detach": lambda rows: rows.detach(),
    "data": lambda rows: rows.data,
    "storage": lambda rows: rows.untyped_storage().nbytes(),
    "pickle": lambda rows: pickle.dumps(rows.detach()),
    "deepcopy": lambda rows: copy.deepcopy(rows.detach()),
    "save": lambda rows: torch.save(rows.detach(), io.BytesIO()),
    "numpy": lambda rows: rows.detach().to_local().numpy(),
    "locals": lambda rows: repr(locals()),
    "collect": lambda rows: gc.collect(),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_reading_on_one_rank_sends_nothing_and_changes_nothing(read):
    def check(rank):
        _, rows = looked_up()
        if rank == 0:
            read(rows)
        assert bytes_of(lambda: torch.testing.assert_close(rows.full_tensor(), F.embedding(IDS, TABLE))) > 0
        local = rows.to_local()
        is_own = rank == IDS // 5
        torch.testing.assert_close(local, F.embedding(IDS, TABLE) * is_own.unsqueeze(-1))

    run_ranks(4, check)


@pytest.mark.parametrize("keep", ["variable", "cycle", "traceback"])
def test_a_result_that_lives_on_one_rank_only_disturbs_no_write_to_the_table(keep):
    def check(rank):
        table, rows = looked_up()
        kept = []
        if rank == 0 and keep == "variable":
            kept.append(rows)
        if rank == 0 and keep == "cycle":
            kept.append(rows)
            kept.append(kept)
        if rank == 0 and keep == "traceback":
            try:
                raise RuntimeError(rows)
            except RuntimeError as error:
                kept.append(error)
        del rows
        with torch.no_grad():
            assert bytes_of(lambda: table.mul_(1)) == 0
            torch.testing.assert_close((table + 1).full_tensor(), TABLE + 1)

    run_ranks(4, check)


WRITES = {
    "result": lambda rows: rows.mul_(2),
    "view": lambda rows: rows.view(-1, N_COLUMNS).mul_(2),
    "row": lambda rows: [rows[i].mul_(2) for i in range(len(rows))],
    "detached": lambda rows: rows.detach().mul_(2),
    "data": lambda rows: rows.data.mul_(2),
    "foreach": lambda rows: torch._foreach_mul_([rows], 2),
    "copy": lambda rows: rows.copy_(rows * 2),
    "out": lambda rows: torch.mul(rows, 2, out=rows),
}


@pytest.mark.parametrize("to", [Replicate(), Shard(0), Shard(2)], ids=str)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_moves_see_what_operators_wrote(write, to):
    def check(rank):
        with torch.no_grad():
            _, rows = looked_up()
            before = rows.detach()
            if rank == 1:
                rows.to_local()
            write(rows)
            for each in (rows, before):
                moved = each.redistribute(placements=[to])
                torch.testing.assert_close(moved.full_tensor(), F.embedding(IDS, TABLE) * 2)

    run_ranks(4, check)


def test_moves_of_many_tensors_send_rows_once():
    ids, table = torch.arange(4000) * 7 % 1000, torch.randn(1000, 64)

    def check(rank):
        _, rows = looked_up(table, ids)
        many = lambda: sw.redistribute_many([rows, rows], [[Replicate()], [Shard(0)]])  # noqa: E731
        assert bytes_of(many) < 750 * 256 * 2 + 1
        for moved in many():
            torch.testing.assert_close(moved.full_tensor(), F.embedding(ids, table))

    run_ranks(4, check)


def test_a_policy_against_hidden_messages_lets_the_lookup_pass():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        ids = sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None)
        with sw.communication_policy("error"), sw.lookup_exchange("auto", check_ids=False):
            rows = F.embedding(ids, table)
            with pytest.raises(ValueError, match=r"\[aten::exp\] moves .*Partial.* on its own"):
                rows.exp()
            moved = rows.redistribute(placements=[Shard(0)])
            torch.testing.assert_close(moved.full_tensor(), F.embedding(IDS, TABLE))

    run_ranks(4, check)


def sgd_step(table):
    (table.square().sum() * 0.5).backward()
    torch.optim.SGD([table], lr=1.0).step()


def fused_step(table):
    optimizer = sw.optim.FusedSGD([table], lr=1.0)
    ids = sw.distribute_tensor(torch.arange(N_ROWS), table.device_mesh, [Shard(0)], src_data_rank=None)
    F.embedding(ids, table).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.detach().zero_(),
        lambda table: table.data.mul_(0),
        lambda table: table.detach()[0:20].fill_(0),
        lambda table: nn.init.zeros_(table),
        lambda table: table.detach().copy_(torch.zeros_like(table)),
        sgd_step,
        fused_step,
    ],
    ids=["zero_", "data", "view", "init", "copy_", "SGD", "fused SGD"],
)
@pytest.mark.parametrize("placement", [Shard(0), Shard(0, sizes=[0, 20, 0, 0])], ids=["even", "empty"])
def test_rows_are_those_of_the_time_of_the_lookup(write, placement):
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [placement])
        ids = sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None)
        with torch.no_grad():
            rows = F.embedding(ids, table)
        write(table)
        torch.testing.assert_close(rows.full_tensor(), F.embedding(IDS, TABLE))

    run_ranks(4, check)


def test_ids_may_be_written_to_before_the_rows_are_used():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        plain = IDS.clone()
        ids = sw.DTensor.from_local(plain, mesh, [Replicate()])
        with sw.implicit_replication(), torch.no_grad():
            rows, others = F.embedding(ids, table), F.embedding(plain, table)
        plain.zero_()
        torch.testing.assert_close(rows.full_tensor(), F.embedding(IDS, TABLE))
        torch.testing.assert_close(others.redistribute(placements=[Shard(0)]).full_tensor(), F.embedding(IDS, TABLE))

    run_ranks(4, check)


def test_the_table_may_be_written_to_past_the_distributed_tensor():
    def check(rank):
        with torch.no_grad():
            table, rows = looked_up()
            table.to_local().zero_()
            torch.testing.assert_close(rows.full_tensor(), F.embedding(IDS, TABLE))

    run_ranks(4, check)


def test_bad_ids_are_errors_where_they_are_looked_up():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        too_large = sw.DTensor.from_local(torch.tensor([1, N_ROWS]), mesh, [Replicate()])
        with pytest.raises(IndexError, match="id 20 is no row of the table"):
            F.embedding(too_large, table)
        differing = sw.DTensor.from_local(torch.tensor([rank]), mesh, [Replicate()])
        with pytest.raises(ValueError, match="replicated ids differ"):
            F.embedding(differing, table)

    run_ranks(4, check)


def test_other_tensors_of_inference_mode_may_be_written_to_meanwhile():
    def check(rank):
        with torch.inference_mode():
            mesh = sw.init_device_mesh("cpu", (4,))
            table = sw.distribute_tensor(TABLE, mesh, [Shard(0)], src_data_rank=None)
            other = sw.zeros(3, device_mesh=mesh)
            rows = F.embedding(sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None), table)
            other.add_(1)
            torch.testing.assert_close(rows.full_tensor(), F.embedding(IDS, TABLE))

    run_ranks(4, check)
