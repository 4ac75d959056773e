"""Dry runs: what they count is what a run sends and holds; reads of values, ranks that are alike, and ranks that diverge."""

import dataclasses
import json
import pickle

import dry_run_program
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
from dry_run_scripts import run_of
from torch.utils.flop_counter import FlopCounterMode
from torchrun import expect_all_well

import shardwise as sw
from shardwise import _C
from shardwise._dry_run.agreement import divergences
from shardwise._dry_run.job import run_all, run_as, sampled
from shardwise._dry_run.rank_number import RankNumber
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, parallelize_module
from shardwise.testing import run_ranks


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    expect_all_well("dry_run_program.py", dry_run_program.N_RANKS, "write", folder)
    return lambda case, rank: json.loads((folder / f"{case}-{rank}.json").read_text())


@pytest.mark.parametrize("case", dry_run_program.CASES)
def test_a_dry_run_sends_and_holds_what_a_run_does(case, real):
    for rank in range(dry_run_program.N_RANKS):
        with sw.dry_run(dry_run_program.N_RANKS, rank, device_type="cpu") as run:
            dry_run_program.CASES[case]()
            sent = dry_run_program.sent(run._events.collectives())
        known = real(case, rank)
        assert sent == known["sent"]
        # The real run has its message buffers from the first time on, at the peak or before it.
        kept = [each for each in run.figures.allocations if each.kind != "message buffers"]
        without_buffers = dataclasses.replace(run.figures, allocations=kept)
        assert 0.97 * max(without_buffers.bytes_over_time) <= known["peak"] <= 1.03 * max(run.figures.bytes_over_time)


def test_writes_to_lists_take_what_torch_takes():
    with sw.dry_run(2):
        written = [torch.empty(3, 4), torch.empty(4)]
        torch._foreach_add_(written, [torch.empty(4), torch.empty(4)])
        torch._foreach_lerp_(written, [torch.empty(3, 4), torch.empty(4)], 0.5)
        torch._foreach_mul_([torch.empty(2, dtype=torch.int64)], 2)
        torch._foreach_mul_(written, torch.empty(()))
        assert [each.shape for each in written] == [(3, 4), (4,)]
        with pytest.raises(RuntimeError, match="same number of tensors"):
            torch._foreach_add_(written, written[:1])
        with pytest.raises(RuntimeError, match="broadcast"):
            torch._foreach_addcmul_(written, written, [torch.empty(3), torch.empty(4)])
        with pytest.raises(RuntimeError, match="dtype"):
            torch._foreach_lerp_(written, [torch.empty(3, 4, dtype=torch.float64), torch.empty(4)], 0.5)


def test_flops_are_those_that_torch_counts():
    def compute():
        x = torch.rand(4, 3, 16, 16, device="meta", requires_grad=True)
        y = torch.nn.functional.conv2d(x, torch.rand(8, 3, 3, 3, device="meta", requires_grad=True), stride=2)
        z = y.flatten(1) @ torch.rand(y[0].numel(), 5, device="meta", requires_grad=True)
        q = torch.rand(2, 4, 32, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
        a = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)[0]
        b = torch.baddbmm(
            torch.rand(6, 3, 5, device="meta"), torch.rand(6, 3, 4, device="meta"), torch.rand(6, 4, 5, device="meta")
        )
        (z.sum() + a.sum() + b.sum()).backward()

    with FlopCounterMode(display=False) as known:
        compute()
    meter = _C.WorkMeter()
    compute()
    meter.stop()
    assert sum(flops for _, flops, *_ in meter.works()) == known.get_total_flops()


def test_memory_is_counted_while_it_is_held():
    memory = _C.MetaMemory()
    a = torch.empty(100, device="meta")
    b = a.view(10, 10)
    del a
    memory.label(b, 7)
    c = torch.empty(2, 3, dtype=torch.float64, device="meta")
    del b, c
    memory.stop()
    torch.empty(5, device="meta")
    assert [each[:4] for each in memory.allocations()] == [(400, 0, 2, 7), (48, 1, 3, 0)]


def test_two_meters_at_a_time_are_refused():
    memory, work = _C.MetaMemory(), _C.WorkMeter()
    with pytest.raises(ValueError, match="being counted already"):
        _C.MetaMemory()
    with pytest.raises(ValueError, match="being counted already"):
        _C.WorkMeter()
    memory.stop()
    work.stop()


def test_a_read_of_a_value_is_an_error_that_names_the_line_unless_a_value_is_given():
    with pytest.raises(ValueError, match=r"test_dry_run.py:\d+ in .* reads a value \(item\).*--value 1"), sw.dry_run(8):
        torch.rand(3).sum().item()
    with sw.dry_run(8, value=2) as run:
        x = torch.rand(2, 3, device="cuda:7")
        assert (x.sum().item(), bool(x[0, 0]), x.tolist(), f"{x[0, 0]:.1f}") == (2.0, True, [[2.0] * 3] * 2, "2.0")
        assert x.numpy().tolist() == [[2.0] * 3] * 2
    assert sum(run.figures.reads.values()) == 5


def test_an_operator_that_needs_values_has_the_given_one_in_each_element():
    with sw.dry_run(8, value=1) as run:
        ids, x = torch.randint(0, 5, (12,)), torch.rand(12, 3, requires_grad=True)
        assert ids.bincount(minlength=5).shape == (5,)
        assert [len(part) for part in ids.tensor_split(torch.tensor([2, 7]))] == [1, 0, 11]
        rows = x[ids > 2]
        assert (rows.shape, rows.is_meta, rows.requires_grad) == ((12, 3), True, True)
        with pytest.raises(ValueError, match="calls masked_select, which needs values"):
            x.exp().masked_select(x > 1)
    assert len(run.figures.reads) == 4
    with pytest.raises(ValueError, match=r"reads a value \(bincount\).*--value 1"), sw.dry_run(8):
        torch.randint(0, 5, (12,)).bincount()


def test_objects_are_exchanged_as_if_all_ranks_had_this_ones():
    with sw.dry_run(4, 2) as run:
        found, mine, part = [None] * 4, ["here"], [None]
        dist.all_gather_object(found, "here")
        dist.broadcast_object_list(mine, src=0)
        dist.scatter_object_list(part, src=0)
    assert (found, mine, part) == (["here"] * 4, ["here"], [None])
    n = len(pickle.dumps("here"))
    spans = [each.span for each in run.figures.communications]
    assert [(each.collective, each.bytes_sent) for each in spans[:4]] == [
        ("allgather", 3 * 8),
        ("allgather", 3 * n),
        ("broadcast", 8),
        ("broadcast", n),
    ]


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_the_device_that_is_planned_for_is_there(device_type):
    with sw.dry_run(4, device_type=device_type) as run:
        model = torch.nn.Linear(3, 3, device="cuda" if torch.cuda.is_available() else "cpu")
        assert torch.cuda.is_available() == (device_type == "cuda")
        with torch.autocast(device_type, torch.bfloat16):
            model(torch.rand(2, 3)).sum().backward()
    assert run.figures.failure == ""


def test_a_gpus_memory_is_what_the_dry_run_counts():
    with sw.dry_run(4):
        x = torch.empty(1000, device="cuda")
        y = torch.empty(500, device="cuda")
        del y
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated("cuda:0")) == (4000, 6000)
        assert torch.cuda.memory.max_memory_reserved() == torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 6000
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == x.nbytes
        torch.empty(100)
        assert torch.cuda.max_memory_allocated() == 4400


def test_equal_calls_are_counted_together_until_somebody_asks_for_their_number():
    meter = _C.WorkMeter()
    x = torch.empty(10, device="meta")
    for _ in range(3):
        x.mul_(x)
    n = meter.n_works()
    x.mul_(x)
    meter.stop()
    assert n == 1
    assert meter.works() == [("aten::mul_", 0, 240, False, 3), ("aten::mul_", 0, 80, False, 1)]


def test_members_gradients_are_summed_by_list_and_count_as_one_work():
    with sw.dry_run(64) as run:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        fully_shard(model, mesh=sw.init_device_mesh("cuda", (64,)))
        model(torch.rand(2, 64)).sum().backward()
    (sums,) = (each for each in run.figures.works if each.op == "aten::_foreach_add_")
    assert sums.n_calls == 63
    n_bytes = 4 * sum(each.to_local().numel() for each in model.parameters())
    assert sums.n_bytes == 63 * 3 * n_bytes  # two operands and a result
    assert not any(each.op == "aten::add_" for each in run.figures.works)


def test_every_device_is_meta_and_the_world_is_as_large_as_asked():
    with sw.dry_run(512, 3) as run:
        torch.cuda.set_device(3)
        with torch.random.fork_rng(devices=[3], device_type="cuda"):  # as torch's pipelines do
            torch.cuda.manual_seed(0)
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
        dist.init_process_group("nccl")
        mesh = sw.init_device_mesh("cuda", (64, 8), mesh_dim_names=("dp", "tp"))
        x = sw.zeros(1024, 64, device_mesh=mesh, placements=[sw.Shard(0), sw.Shard(1)])
        assert (dist.get_rank(), dist.get_world_size(), mesh.device_type, x.is_meta) == (3, 512, "meta", True)
        assert x.to_local().shape == (16, 8)
        x.full_tensor()
        dist.all_reduce(torch.ones(7).cuda())
    received = {
        each.span.collective: each.span.bytes_received
        for each in run.figures.communications
        if each.span.bytes_received
    }
    assert received == {"all_gather": (1024 * 64 - 16 * 8) * 4, "allreduce": 2 * 28 * 511 // 512}
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0,), "at least one rank"), ((4, 4), "Give 0 to 3"), ((4, -1), "Give 0 to 3")],
)
def test_a_rank_outside_the_job_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        sw.dry_run(*arguments)


def test_a_rank_number_notes_what_was_learned_from_it():
    facts = []
    rank = RankNumber(5, lambda rank: rank, facts)
    assert isinstance(rank, int)
    assert (f"{rank}", str(rank + 1), facts) == ("5", "6", [])
    assert (rank % 4 == 1, rank > 7) == (True, False)
    assert [each for each in range(12) if all(fact(each) for fact in facts)] == [1, 5]
    assert [10, 11, 12, 13, 14, 15][rank] == 15
    assert [each for each in range(12) if all(fact(each) for fact in facts)] == [5]


def test_one_rank_runs_of_those_that_are_alike(tmp_path):
    text = """
x = sw.ones(64, 12, device_mesh=mesh["tp"], placements=[sw.Shard(1)])
x.full_tensor()
if rank == 0:
    print("rank", rank)
"""
    found = run_all(run_of(tmp_path, text))
    assert sorted(each.alike for each in found) == [[0], list(range(1, 32))]
    assert divergences(found) == []


def test_uneven_shards_divide_the_ranks(tmp_path):
    found = run_all(run_of(tmp_path, "sw.ones(9, 5, device_mesh=mesh['tp'], placements=[sw.Shard(0)]).sum().item\n"))
    assert sorted(each.alike for each in found) == [
        [rank for rank in range(32) if rank % 4 < 3],
        [rank for rank in range(32) if rank % 4 == 3],
    ]


def test_ranks_that_diverge_are_named_with_their_lines(tmp_path):
    text = """
x = sw.ones(64, 12, device_mesh=mesh["tp"], placements=[sw.Shard(1)])
if mesh.get_local_rank("tp") == 2:
    x.full_tensor()
else:
    dist.all_reduce(torch.ones(3), group=mesh.get_group("tp"))
"""
    (found,) = divergences(run_all(run_of(tmp_path, text)))
    assert "all_gather for redistribute" in found or "all_gather for full_tensor" in found
    assert "program.py:8" in found
    assert "program.py:10" in found


def test_a_program_that_fails_has_figures_up_to_there(tmp_path):
    (figures,) = run_as(run_of(tmp_path, "torch.ones(1 << 20)\nraise KeyError('x')\n"), [3])
    assert figures.failure.startswith("KeyError: 'x' at ")
    assert figures.failure.endswith("program.py:6")
    assert figures.setup_peak_bytes or figures.peak_bytes == 4 << 20


def test_samples_are_evenly_spaced():
    assert [sampled(512, 4), sampled(3, 3), sampled(5, 1)] == [[0, 170, 341, 511], [0, 1, 2], [0]]


def test_a_mesh_without_tensors_has_groups_that_agree(tmp_path):
    text = """
if mesh.get_local_rank("tp") == 3:
    print("last")
dist.all_reduce(torch.ones(3), group=mesh.get_group("tp"))
"""
    found = run_all(run_of(tmp_path, text))
    assert len(found) == 2
    assert divergences(found) == []


def test_membership_of_a_group_divides_the_ranks(tmp_path):
    text = """
group = dist.new_group([0, 1])
if group is not dist.GroupMember.NON_GROUP_MEMBER:
    dist.all_reduce(torch.ones(3), group=group)
"""
    found = run_all(run_of(tmp_path, text))
    assert sorted(each.alike for each in found) == [[0, 1], list(range(2, 32))]


def test_ranks_outside_a_mesh_are_not_alike(tmp_path):
    text = """
some = sw.DeviceMesh("cuda", [0, 1, 2])
place = some.get_coordinate()
if place is not None and place[0] < 2:
    print("first two")
"""
    found = run_all(run_of(tmp_path, text))
    assert sorted(each.alike for each in found) == [[0, 1], [2], list(range(3, 32))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("if rank == 0: dist.barrier()", "barrier"),
        ("dist.all_reduce(torch.ones(3 if rank == 0 else 4))", "allreduce"),
        ("dist.all_reduce(torch.ones(3, dtype=torch.half if rank == 0 else torch.float))", "Half"),
        ("if rank == 0: dist.broadcast_object_list([3])", "broadcast"),
    ],
)
def test_a_collective_of_one_rank_alone_is_found(tmp_path, text, words):
    (found,) = divergences(run_all(run_of(tmp_path, text)))
    assert words in found


def test_numbers_of_ranks_go_where_numbers_go(tmp_path):
    text = """
import json
x = torch.ones(3) * rank + torch.full((3,), rank)
json.dumps({"rank": rank})
"""
    found = run_all(run_of(tmp_path, text, n_ranks=32))
    assert [each.failure for each in found] == [""] * 32


def test_a_program_may_have_processes_of_its_own(tmp_path):
    text = """
loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2, num_workers=1)
assert [len(batch) for batch in loader] == [2, 2, 2]
"""
    (figures,) = run_as(run_of(tmp_path, text), [0])
    assert figures.failure == ""


def test_a_program_that_ends_its_process_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="rank 3 ended with exit code 7"):
        run_as(run_of(tmp_path, "import os; os._exit(7)"), [3])


def test_a_failed_run_leaves_nothing_behind():
    allocate = dist.init_process_group
    with pytest.raises(KeyError), sw.dry_run(8, 3) as run:
        torch.ones(3)
        raise KeyError("x")
    assert run.figures.failure.startswith("KeyError")
    assert dist.init_process_group is allocate
    assert not dist.is_initialized()
    assert torch.ones(3).device.type == "cpu"
    with sw.dry_run(8, 3):
        pass


def test_a_device_that_torch_does_not_know_is_refused():
    for name in ("foo", "cuda:1"):
        with pytest.raises(ValueError, match=f"device_type is '{name}'.* such as cuda or cpu"):
            sw.dry_run(8, device_type=name)


def test_the_backward_of_a_loss_of_sharded_classes_takes_plain_targets():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, 12)

        def forward(self, x, targets):
            return torch.nn.functional.cross_entropy(self.head(x), targets)

    with sw.dry_run(4) as run:
        mesh = sw.init_device_mesh("cuda", (4,))
        model = Loss()
        parallelize_module(model, mesh, {"head": ColwiseParallel(use_local_output=False)})
        model(torch.randn(5, 6), torch.arange(5)).backward()
    assert run.figures.failure == ""
    assert model.head.weight.grad.placements == (sw.Shard(0),)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, plain: x @ plain,
        lambda x, plain: torch.nn.functional.linear(plain, x),
        lambda x, plain: x * plain,
        lambda x, plain: x.add_(plain),
        lambda x, plain: plain.copy_(x),
        lambda x, plain: torch.where(plain > 0, x, plain),
        lambda x, plain: torch.nn.functional.scaled_dot_product_attention(x[None], plain[None], plain[None]),
    ],
)
def test_plain_tensors_are_refused_next_to_distributed_ones_as_by_real_ranks(call):
    def body(rank):
        x = sw.ones(4, 4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[sw.Shard(0)])
        with pytest.raises(ValueError, match="next to a DTensor") as error:
            call(x, torch.ones(4, 4))
        return str(error.value)

    with sw.dry_run(2, device_type="cpu"):
        found = body(0)
    assert found == run_ranks(2, body)[0]
    with forward_ad.dual_level(), sw.dry_run(2, device_type="cpu"):
        assert body(0) == found
