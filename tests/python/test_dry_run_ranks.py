"""Dry runs of several ranks: one that stands for others answers as they do, and messages between two ranks are received as they are sent."""

import pytest

from shardwise._dry_run.agreement import unpaired
from shardwise._dry_run.job import Program, run_all, run_as

HEAD = """
import os, torch, torch.distributed as dist, shardwise as sw
mesh = sw.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
rank = dist.get_rank()
group = mesh.get_group("tp")
"""
N_RANKS = 4


def run_of(tmp_path, text, n_ranks=N_RANKS):
    script = tmp_path / "program.py"
    script.write_text(HEAD + text)
    return Program((str(script),), n_ranks, "cuda", None, 2)


CONDITIONS = {
    "os.environ.get('RANK') == '0'": 4,
    "os.getenv('LOCAL_RANK') == '1'": 2,
    "dist.get_node_local_rank() == 1": 2,
    "dist.group.WORLD.rank() == 2": 2,
    "group.rank() == 0": 2,
    "dist.get_rank(group) == 1": 2,
    "dist.get_rank(mesh.get_all_groups()[0]) == 1": 2,
    "dist.get_rank(dist.new_group([1, 3])) == 1": 4,
    "dist.get_process_group_ranks(group)[0] == rank": 4,
    "dist.get_global_rank(group, 0) == 2": 2,
    "mesh['tp'].get_local_rank() == 1": 2,
    "mesh['dp'].mesh[0].item() == rank": 4,
    "mesh.mesh[1, 0].item() == rank": 2,
    "mesh.get_coordinate()[0] == mesh.get_coordinate()[1]": 2,
    "sw.ones(4, device_mesh=mesh['dp'], placements=[sw.Shard(0)]).__create_chunk_list__()[0].offsets[0] == 2": 4,
}


def answer_to(condition):
    """A line of a program that makes a tensor of a size of its own if `condition` holds."""
    return f"if {condition}: dist.broadcast(torch.empty({1000 + list(CONDITIONS).index(condition)}), src=0)\n"


def are_answered(figures):
    """The conditions that hold on the rank that ran."""
    assert figures.failure == ""
    sizes = {each.span.bytes_sent // 4 - 1000 for each in figures.communications if each.span.collective == "broadcast"}
    return [condition for place, condition in enumerate(CONDITIONS) if place in sizes]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    program = run_of(tmp_path_factory.mktemp("alone"), "".join(map(answer_to, CONDITIONS)))
    return [are_answered(figures) for figures in run_as(program, range(N_RANKS))]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_one_rank_answers_as_those_that_it_stands_for(tmp_path, condition, alone):
    assert len({condition in answered for answered in alone}) == 2
    found = run_all(run_of(tmp_path, answer_to(condition)))
    assert len(found) <= CONDITIONS[condition]
    for each in found:
        for rank in each.alike:
            assert (condition in are_answered(each)) == (condition in alone[rank]), rank


AROUND = """
after, before = (rank + 1) % 4, (rank - 1) % 4
sent, received = torch.ones(3), torch.ones(3)
"""


def test_messages_that_arrive_are_well(tmp_path):
    text = """
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)])
[work.wait() for work in works]
if rank % 2 == 0:
    dist.send(sent, after, tag=3)
    dist.recv(received, before, tag=4)
else:
    dist.recv(received, before, tag=3)
    dist.send(sent, after, tag=4)
dist.send(sent, 1) if rank == 0 else dist.recv(received) if rank == 1 else None  # from any rank
"""
    found = run_all(run_of(tmp_path, AROUND + text))
    assert unpaired(found) == ""
    spans = [each.span for each in found[0].communications if "send" in each.span.collective]
    assert [(each.bytes_sent, each.bytes_received) for each in spans] == [(12, 0)] * 3


def test_partners_of_alike_ranks_have_the_same_place_in_their_groups(tmp_path):
    text = """
if mesh.get_local_rank("tp") == 0:
    dist.send(torch.ones(3), group=group, group_dst=1)
else:
    dist.recv(torch.ones(3), group=group, group_src=0)
"""
    found = run_all(run_of(tmp_path, text))
    assert [each.alike for each in found] == [[0, 2], [1, 3]]
    assert unpaired(found) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("if rank == 0: dist.send(sent, 1)", ["message 1 from rank 0 to rank 1", "rank 1 receives nothing", ":10"]),
        ("if rank == 3: dist.recv(sent, 2)", ["message 1 from rank 2 to rank 3", "rank 2 sends nothing"]),
        (
            "if rank == 0: dist.isend(sent, 1)\nif rank == 1: dist.irecv(torch.ones(4), 0)",
            ["Float, 12 bytes", "Float, 16 bytes", ":10", ":11"],
        ),
        ("if rank == 0: dist.isend(sent, 1)\nif rank == 1: dist.irecv(sent.int(), 0)", ["(Float", "(Int"]),
        ("dist.send(sent, after)\ndist.recv(received, before)", ["waits for rank", ":10", "waits, too"]),
    ],
)
def test_messages_that_do_not_arrive_are_shown_with_both_lines(tmp_path, text, words):
    found = unpaired(run_all(run_of(tmp_path, AROUND + "\n" + text)))
    for each in words:
        assert each in found


def test_only_pairs_of_ranks_that_ran_are_compared(tmp_path):
    program = run_of(tmp_path, AROUND + "dist.isend(sent, after)\n")
    assert unpaired(run_as(program, [0, 2])) == ""
    assert "receives nothing" in unpaired(run_as(program, [0, 1]))


def test_bytes_of_gather_scatter_and_uneven_all_to_all(tmp_path):
    text = """
parts = [torch.ones(5) for _ in range(4)]
dist.gather(torch.ones(5), parts if rank == 1 else None, dst=1)
dist.scatter(torch.ones(5), parts if rank == 1 else None, src=1)
dist.all_to_all([torch.ones(each) for each in (1, 2, 0, 4)], [torch.ones(rank) for _ in range(4)])
dist.all_to_all_single(torch.ones(7), torch.ones(4 * rank), [1, 2, 0, 4], [rank] * 4)
"""
    for figures in run_as(run_of(tmp_path, text), [0, 1]):
        assert figures.failure == ""
        spans = [each.span for each in figures.communications if each.span.op.startswith("c10d")]
        moved = [(each.collective, each.bytes_sent, each.bytes_received) for each in spans]
        received = (7 - (1, 2)[figures.rank]) * 4
        sent = 3 * figures.rank * 4
        assert moved == [
            ("gather", *((20, 0), (0, 60))[figures.rank]),
            ("scatter", *((0, 20), (60, 0))[figures.rank]),
            ("alltoall", sent, received),
            ("alltoall_base", sent, received),
        ]
