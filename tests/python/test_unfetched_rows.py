"""Rows of replicated ids are sent when they are used, and only those that the use needs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.testing import run_ranks

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


def test_only_the_rows_that_a_rank_needs_are_sent_to_it():
    ids, table = torch.arange(4000) * 7 % 1000, torch.randn(1000, 64)

    def check(rank):
        mesh, ours = lay_out(table, (4,), [Shard(0)])
        replicated = sw.distribute_tensor(ids, mesh, [Replicate()], src_data_rank=None)
        sharded = sw.distribute_tensor(ids, mesh, [Shard(0)], src_data_rank=None)
        unused = bytes_of(lambda: F.embedding(replicated, ours))
        whole = bytes_of(lambda: F.embedding(replicated, ours).to_local())
        part = bytes_of(lambda: F.embedding(replicated, ours).redistribute(placements=[Shard(0)]))
        by_hand = bytes_of(lambda: F.embedding(sharded, ours))
        assert unused < 100
        assert whole == unused + 750 * 256
        assert part <= by_hand + 100

    run_ranks(4, check)


def test_printing_on_one_rank_waits_for_nobody():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        rows = F.embedding(sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None), table)
        assert rank > 0 or "DTensor(unfetched, " in repr(rows)
        torch.testing.assert_close(rows.to_local(), F.embedding(IDS, TABLE))
        assert rank > 0 or "local_tensor" in repr(rows)

    run_ranks(4, check)


def test_rows_are_fetched_once():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        rows = F.embedding(sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None), table)
        assert bytes_of(lambda: rows * 2) > 0
        assert bytes_of(lambda: (rows * 3, rows.redistribute(placements=[Shard(0)]), rows.to_local())) == 0

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


def test_a_write_past_the_distributed_tensor_is_an_error():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        ids = sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None)
        with torch.no_grad():
            local = table.to_local()
            rows = F.embedding(ids, table)
            local.zero_()
            with pytest.raises(ValueError, match="the table was written to, by way of its local tensor"):
                rows.sum()

    run_ranks(4, check)


def test_bad_ids_are_errors_where_they_are_looked_up():
    def check(rank):
        mesh, table = lay_out(TABLE, (4,), [Shard(0)])
        too_large = sw.DTensor.from_local(torch.tensor([1, N_ROWS]), mesh, [Replicate()])
        with pytest.raises(IndexError, match="id 20 is no row of the table"):
            F.embedding(too_large, table)
        differing = sw.DTensor.from_local(torch.tensor([rank]), mesh, [Replicate()])
        with pytest.raises(ValueError, match="differ there"):
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
