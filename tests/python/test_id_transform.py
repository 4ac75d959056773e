"""Raw ids to rows: hashes, and exact mappings with eviction, against a dict on one rank."""

import copy
import pickle
import random

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from id_reference import Reference, mixed
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.id_transform import ExactMapping, ModuloHash
from shardwise.testing import run_ranks

INT64 = (-(1 << 63), (1 << 63) - 1)


def batches(n_steps, n_ranks, n_known=150, size=12, seed=0):
    """Per step and rank a list of ids: popular ones often, on several ranks; extremes of 64 bits; ranks without any."""
    source = random.Random(seed)
    known = [source.randint(*INT64) for _ in range(n_known - 3)] + [0, *INT64]

    def draw():
        popular = known[min(int(source.paretovariate(0.7)) - 1, n_known - 1)]
        return source.choice(known) if source.random() < 0.5 else popular

    return [[[draw() for _ in range(source.randint(0, size))] for _ in range(n_ranks)] for _ in range(n_steps)]


def check_state(mapping, reference):
    used = [row for row in range(reference.n_rows) if reference.last_used[row] >= 0]
    for name in ("ids", "last_used", "counts"):
        found, expected = getattr(mapping, name).full_tensor().tolist(), getattr(reference, name)
        assert [found[row] for row in used] == [expected[row] for row in used], name
    assert (mapping.last_used.full_tensor() >= 0).sum() == len(used)
    assert mapping.header.full_tensor()[0] == reference.step


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("n_rows, n_buckets, default_row", [(40, 2, 0), (31, 2, 30), (100, 3, 50), (64, 1, 7)])
def test_a_mapping_is_that_of_a_dict(n_ranks, n_rows, n_buckets, default_row):
    steps = batches(40, n_ranks, size=24 // n_ranks)
    reference = Reference(n_rows, n_buckets, default_row)
    expected, reassigned = [], []
    for step in steps:
        reference.transform([number for of_rank in step for number in of_rank])
        expected.append([reference.find(of_rank) for of_rank in step])
        reassigned.append(sorted(reference.reassigned))
    assert sum(map(len, reassigned)) > 30

    def body(rank):
        mapping = ExactMapping(
            n_rows, sw.init_device_mesh("cpu", (n_ranks,)), n_buckets=n_buckets, default_row=default_row
        )
        assert mapping.n_buckets == n_buckets and mapping.ids.placements == mapping.placements
        taken = []
        for step, rows in zip(steps, expected, strict=True):
            assert mapping(torch.tensor(step[rank], dtype=torch.int64)).tolist() == rows[rank]
            assert mapping.n_reassigned == len(reassigned[len(taken)])
            taken.append(mapping.reassigned)
        check_state(mapping, reference)
        mapping.eval()
        asked = torch.tensor([[INT64[0], 123456789], [5 + rank, INT64[1]]])
        assert mapping(asked).tolist() == [reference.find(row) for row in asked.tolist()]
        check_state(mapping, reference)
        return taken

    taken = run_ranks(n_ranks, body)
    for step in range(len(steps)):
        assert sorted(pair for of_rank in taken for pair in of_rank[step]) == reassigned[step]


def test_ids_are_found_wherever_they_are_and_replicas_count_once():
    numbers = torch.tensor([7, 7, -1, 9, 7, 3])

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        mapping = ExactMapping(50, mesh, n_buckets=4)
        reference = Reference(50, 4)
        for placement in (Shard(0), Replicate(), Shard(0, sizes=[0, 5, 1])):
            ids = sw.distribute_tensor(numbers, mesh, [placement])
            rows = mapping(ids)
            assert isinstance(rows, sw.DTensor) and rows.placements == ids.placements
            assert rows.full_tensor().tolist() == reference.transform(numbers.tolist())
            check_state(mapping, reference)
        columns = sw.distribute_tensor(numbers.view(2, 3).to(torch.int32), mesh, [Shard(1)])
        assert (
            mapping(columns).full_tensor().tolist()
            == torch.tensor(reference.transform(numbers.tolist())).view(2, 3).tolist()
        )
        check_state(mapping, reference)
        assert mapping(torch.tensor(9, dtype=torch.uint8)).shape == () and mapping(
            torch.empty(0, 4, dtype=torch.int64)
        ).shape == (0, 4)

    run_ranks(3, body)


def test_a_call_is_three_exchanges():
    def body(rank):
        mapping = ExactMapping(1000, sw.init_device_mesh("cpu", (4,)))
        mapping(torch.arange(20))
        for train in (True, False):
            mapping.train(train)
            with sw.CommDebugMode() as counted:
                mapping(torch.arange(100) * (rank + 1))
            assert counted.get_total_counts() == 3, counted.get_comm_counts()

    run_ranks(4, body)


def expect_on_all(n_ranks, kind, words, body):
    """`body(rank)` raises on every rank; nobody waits."""

    def rank_body(rank):
        with pytest.raises(kind, match=words):
            body(rank)
        return True

    assert all(run_ranks(n_ranks, rank_body, timeout=60))


def test_errors_are_raised_on_all_ranks_and_leave_the_state():
    def bad_dtype(rank):
        ExactMapping(50, sw.init_device_mesh("cpu", (3,)))(
            torch.ones(2, dtype=torch.float32 if rank == 1 else torch.int64)
        )

    expect_on_all(3, TypeError, r"\[ExactMapping\] ids of rank 1 are Float: they must be integers", bad_dtype)

    def mode(rank):
        ExactMapping(50, sw.init_device_mesh("cpu", (3,))).train(rank != 2)(torch.ones(2, dtype=torch.int64))

    expect_on_all(3, ValueError, "rank 0 is at step 0 and assigns ids, rank 2 at step 0 and only finds", mode)

    def partial(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ExactMapping(50, mesh)(sw.DTensor.from_local(torch.ones(2, dtype=torch.int64), mesh, [Partial()]))

    expect_on_all(2, ValueError, "laid out as .*Partial.*no rank has whole values", partial)

    def too_many(rank):
        mapping = ExactMapping(20, sw.init_device_mesh("cpu", (2,)), n_buckets=2)
        reference = Reference(20, 2)
        mapping(torch.arange(4))
        reference.transform([0, 1, 2, 3] * 2)
        before = copy.deepcopy(mapping.state_dict())
        with pytest.raises(
            ValueError, match=r"a step has \d\d ids of bucket [01], which can hold (9|10)\. Use more rows"
        ):
            mapping(torch.arange(25) + 10 * rank)
        assert all(torch.equal(mapping.state_dict()[name].full_tensor(), before[name].full_tensor()) for name in before)
        assert mapping(torch.arange(3, 7)).tolist() == reference.transform([3, 4, 5, 6] * 2)[:4]
        check_state(mapping, reference)

    run_ranks(2, too_many)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"n_rows": 1}, "n_rows is 1: one row is the default row"),
        ({"n_rows": 10, "n_buckets": 6}, r"n_buckets is 6: .* Use a number in \[1, 5\], or 0"),
        ({"n_rows": 10, "default_row": 10}, "default_row is 10 of a table of 10 rows"),
    ],
)
def test_options_out_of_range(options, words):
    def body(rank):
        with pytest.raises(ValueError, match=r"\[ExactMapping\] " + words):
            ExactMapping(device_mesh=sw.init_device_mesh("cpu", (2,)), **options)

    run_ranks(2, body)


def test_a_state_that_is_not_the_mappings_is_an_error():
    def other_options(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        saved = ExactMapping(64, mesh, n_buckets=4).state_dict()
        mapping = ExactMapping(64, mesh, n_buckets=2)
        mapping.load_state_dict(saved)
        mapping(torch.arange(3))

    expect_on_all(
        2, ValueError, r"made for another n_buckets \(4\).*n_rows=64, n_buckets=4, default_row=0", other_options
    )

    def corrupt(rank):
        mapping = ExactMapping(64, sw.init_device_mesh("cpu", (2,)), n_buckets=4)
        mapping(torch.arange(10))
        moved = mapping.ids.full_tensor().roll(16)
        mapping.ids.copy_(sw.distribute_tensor(moved, mapping.device_mesh, [Replicate()]))
        mapping.last_used.fill_(0)
        mapping(torch.arange(3))

    expect_on_all(2, ValueError, r"corrupt: row 0 of rank 0 holds an id that belongs elsewhere", corrupt)

    def other_layout(rank):
        mapping = ExactMapping(64, sw.init_device_mesh("cpu", (2,)), n_buckets=4)
        mapping.counts = mapping.counts.redistribute(placements=[Replicate()])
        mapping(torch.arange(3))

    expect_on_all(2, ValueError, "counts is not an int64 DTensor", other_layout)

    def outside(rank):
        mapping = ExactMapping(64, sw.DeviceMesh("cpu", [1]))
        if rank == 1:
            assert mapping(torch.tensor([4, 4])).unique().numel() == 1
        else:
            with pytest.raises(ValueError, match="rank 0 is outside the mesh"):
                mapping(torch.arange(3))

    run_ranks(2, outside)


def test_copies_go_on_by_themselves():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        mapping, reference = ExactMapping(40, mesh, n_buckets=2), Reference(40, 2)
        steps = batches(12, 2, size=8)
        for step in steps[:6]:
            mapping(torch.tensor(step[rank], dtype=torch.int64))
            reference.transform(step[0] + step[1])
        loaded = ExactMapping(40, mesh, n_buckets=2)
        loaded.load_state_dict(mapping.state_dict())
        for other in (copy.deepcopy(mapping), pickle.loads(pickle.dumps(mapping)), loaded):
            own = copy.deepcopy(reference)
            for step in steps[6:]:
                expected = own.transform(step[0] + step[1])
                assert other(torch.tensor(step[rank], dtype=torch.int64)).tolist() == (
                    expected[: len(step[0])] if rank == 0 else expected[len(step[0]) :]
                )
            check_state(other, own)
        check_state(mapping, reference)

    run_ranks(2, body)


def test_what_is_loaded_in_place_is_read(tmp_path):
    """torch.distributed.checkpoint writes into the state's memory, without load_state_dict()."""

    def body(rank):
        mapping = ExactMapping(40, sw.init_device_mesh("cpu", (1,)), n_buckets=2)
        first = mapping(torch.arange(5)).tolist()
        dcp.save(mapping.state_dict(), checkpoint_id=tmp_path, no_dist=True)
        mapping(torch.arange(100, 110))
        state = mapping.state_dict()
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        assert mapping.eval()(torch.arange(4, 103)).tolist() == [first[4]] + [0] * 98
        assert mapping(torch.arange(5)).tolist() == first

    run_ranks(1, body)


def test_reassigned_rows_start_anew_in_every_layout():
    n_rows, width = 40, 3

    def train(rank, n_ranks, placement):
        """The table and the sums after some steps, and what was sent to reset rows."""
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        mapping = ExactMapping(n_rows, mesh, n_buckets=4)
        placements = mapping.placements if placement is None else [placement]
        start = torch.arange(n_rows * float(width)).view(n_rows, width)
        table = torch.nn.Parameter(sw.distribute_tensor(start, mesh, placements))
        optimizer = sw.optim.FusedAdagrad([table], lr=0.5, row_wise=True, initial_accumulator_value=0.25)
        n_sent = n_resets = 0
        for step in batches(25, 1, size=9):
            rows = mapping(sw.distribute_tensor(torch.tensor(step[0], dtype=torch.int64), mesh, [Replicate()]))
            with sw.CommDebugMode() as counted:
                mapping.reset_rows(table, optimizer, scale=0.1, seed=5)
            n_sent, n_resets = n_sent + counted.get_total_counts(), n_resets + (mapping.n_reassigned > 0)
            F.embedding(rows, table).square().sum().backward()
        return table.detach().full_tensor(), optimizer.state[table]["sum"].full_tensor(), n_sent, n_resets

    (dense, sums, n_sent, n_resets), *_ = run_ranks(1, lambda rank: train(rank, 1, Replicate()))
    assert n_sent == 0 and n_resets > 3
    for n_ranks, placement, sends in (
        (3, None, False),
        (3, Shard(0), True),
        (2, Shard(1), True),
        (4, Replicate(), True),
    ):
        for table, state, n_sent, _ in run_ranks(n_ranks, lambda rank, n=n_ranks, p=placement: train(rank, n, p)):
            torch.testing.assert_close(table, dense)
            torch.testing.assert_close(state, sums)
            assert n_sent == (n_resets if sends else 0), (placement, n_sent)


def test_what_rows_are_filled_with():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        mapping = ExactMapping(4000, mesh, n_buckets=2)
        for begin in (0, 10_000):
            mapping(torch.arange(begin, begin + 1900) if rank == 0 else torch.empty(0, dtype=torch.int64))
        n = mapping.n_reassigned
        assert n == 0
        mapping(torch.arange(20_000, 21_900) if rank == 0 else torch.empty(0, dtype=torch.int64))
        n = mapping.n_reassigned
        assert n > 1500
        table = torch.nn.Parameter(sw.zeros(4000, 50, device_mesh=mesh, placements=mapping.placements))
        mapping.reset_rows(table, init="normal", scale=0.5)
        filled = table.detach().full_tensor()
        filled = filled[filled.abs().sum(1) > 0]
        assert len(filled) == n and abs(filled.mean()) < 0.01 and abs(filled.std() - 0.5) < 0.01
        assert filled.view(-1).unique().numel() > 0.99 * filled.numel()
        mapping.reset_rows(table, init="uniform", scale=2)
        filled = table.detach().full_tensor()
        assert filled.min() > -2.0001 and filled.max() < 2.0001 and abs(filled[filled != 0].abs().mean() - 1) < 0.02
        mapping.reset_rows(table, init="constant", scale=0)
        assert not table.detach().full_tensor().any()
        with pytest.raises(
            ValueError, match=r"\[reset_rows\] a tensor of shape \[3, 2\] does not have the mapping's 4000 rows"
        ):
            mapping.reset_rows(sw.zeros(3, 2, device_mesh=mesh, placements=[Shard(0)]))
        with pytest.raises(ValueError, match='init "ones" is unknown'):
            mapping.reset_rows(table, init="ones")
        with pytest.raises(ValueError, match="SGD does not have this table of shape"):
            mapping.reset_rows(table, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))

    run_ranks(2, body)


def test_optimizers_of_torch_forget_rows_too():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        mapping = ExactMapping(20, mesh, n_buckets=2)
        table = torch.nn.Parameter(sw.ones(20, 3, device_mesh=mesh, placements=mapping.placements))
        optimizer = torch.optim.Adam([table], lr=0.1)
        n_reassigned = 0
        for begin in (0, 6, 12, 18, 24):
            rows = mapping(torch.arange(begin, begin + 6))
            mapping.reset_rows(table, optimizer)
            taken = rows[table.detach().full_tensor()[rows].abs().amax(1) < 0.1]
            assert len(taken) == mapping.n_reassigned
            for name in ("exp_avg", "exp_avg_sq") if len(taken) > 0 else ():
                assert not optimizer.state[table][name].full_tensor()[taken].any()
            ids = sw.DTensor.from_local(rows, mesh, [Shard(0)])
            F.embedding(ids, table).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert optimizer.state[table]["exp_avg"].full_tensor()[rows].any(1).all()
            n_reassigned += len(taken)
        assert n_reassigned > 5

    run_ranks(2, body)


def test_rows_looked_up_before_they_pass_to_other_ids_keep_their_values():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        mapping = ExactMapping(20, mesh, n_buckets=2)
        table = sw.ones(20, 3, device_mesh=mesh, placements=mapping.placements)
        for begin in (0, 6, 12, 18):
            mapping(torch.arange(begin, begin + 6))
        rows = F.embedding(sw.distribute_tensor(torch.arange(20), mesh, [Replicate()]), table)  # not fetched yet
        mapping.reset_rows(table)
        assert mapping.n_reassigned > 0 and not (table.full_tensor() == 1).all()
        assert (rows.full_tensor() == 1).all()

    run_ranks(2, body)


def test_modulo_hash():
    to_rows = ModuloHash(1000, seed=3)
    ids = torch.tensor([[0, -1, INT64[0]], [INT64[1], 5, 5]])
    rows = to_rows(ids)
    assert rows.tolist() == [[mixed(number, 3) % 1000 for number in row] for row in ids.tolist()]
    assert (ModuloHash(1000, seed=4)(ids) != rows).any()
    many = ModuloHash(10_000)(torch.arange(10_000))
    shared = 1 - (many.bincount(minlength=10_000)[many] == 1).double().mean()
    assert abs(shared - to_rows.share_of_collisions(1)) > 0.5
    assert abs(shared - ModuloHash(10_000).share_of_collisions(10_000)) < 0.02
    with pytest.raises(TypeError, match=r"\[ModuloHash\] ids are Float"):
        to_rows(torch.ones(3))
    with pytest.raises(ValueError, match="n_rows is 0"):
        ModuloHash(0)(ids)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        for placement in (Replicate(), Shard(0), Shard(1), Shard(1, sizes=[0, 1, 2])):
            found = to_rows(sw.distribute_tensor(ids, mesh, [placement]))
            assert found.placements == (placement,) and torch.equal(found.full_tensor(), rows)

    run_ranks(3, body)


def test_four_processes_save_and_others_load(tmp_path):
    expect_all_well("id_transform_program.py", 4, "save", tmp_path)
    for n_ranks in (2, 3, 1):
        expect_all_well("id_transform_program.py", n_ranks, "load", tmp_path)
