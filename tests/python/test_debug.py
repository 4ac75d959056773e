"""Pictures and counted communication."""

import pytest
import torch
from layouts import by_name

import shardwise as sw
from shardwise import CommDebugMode, Partial, Replicate, Shard
from shardwise.testing import run_ranks


@pytest.mark.parametrize(
    "case", **{**by_name, "argvalues": [case for case in by_name["argvalues"] if len(case.shape) < 3], "ids": None}
)
def test_pictures_are_the_same_on_every_rank_and_name_their_ranks(case):
    pictures = run_ranks(case.n_ranks, lambda rank: sw.debug.picture(case.distributed()))
    assert len(set(pictures)) == 1
    assert all(f"{rank}" in pictures[0] for rank in torch.tensor(case.ranks).flatten().tolist())


def test_a_picture_of_three_dims_is_refused():
    def body(rank):
        with pytest.raises(ValueError, match="dims"):
            sw.debug.picture(sw.zeros(2, 2, 2, device_mesh=sw.init_device_mesh("cpu", (1,))))

    run_ranks(1, body)


def test_visualize_sharding_prints_the_header_and_the_picture(capsys):
    def body(rank):
        tensor = sw.zeros(4, 2, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        if rank == 1:
            sw.visualize_sharding(tensor, header="table")
            sw.visualize_sharding(tensor, use_rich=True)
        return sw.debug.picture(tensor), sw.debug.picture(tensor, color=True)

    plain, color = run_ranks(2, body)[1]
    assert capsys.readouterr().out == f"table\n{plain}\n{color}\n"
    assert "\x1b[" in color and "\x1b[" not in plain


def test_collectives_are_counted_with_their_bytes_and_operators():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(4, 4, device_mesh=mesh, placements=[Shard(1)])
        with CommDebugMode() as outer:
            with CommDebugMode() as inner:
                (x @ x.t()).redistribute(placements=[Replicate()])
            x.redistribute(placements=[Shard(0)])
        x.full_tensor()
        return inner, outer

    inner, outer = run_ranks(2, body)[0]
    assert inner.get_comm_counts() == {"all_reduce": 1} and inner.get_total_counts() == 1
    assert inner.get_op_counts() == {"redistribute": {"all_reduce": 1}}
    assert inner.bytes_received() == inner.bytes_sent() == 64
    assert outer.get_comm_counts() == {"all_reduce": 1, "all_to_all": 1} and outer.get_total_counts() == 2
    assert outer.bytes_received() == 64 + 16
    event = outer.events[1]
    assert (event.collective, event.op, event.n_ranks) == ("all_to_all", "redistribute", 2)
    assert (event.bytes_sent, event.bytes_received) == (16, 16)
    assert repr(event) == "CommEvent(all_to_all of 2 ranks for redistribute: 16 bytes sent, 16 received)"


def test_a_counter_may_be_used_again_and_outlives_its_block():
    def body(rank):
        x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        comm = CommDebugMode()
        assert comm.get_total_counts() == 0
        for _ in range(2):
            with comm:
                x.full_tensor()
            assert comm.get_total_counts() == 1

    run_ranks(2, body)


def test_the_backward_pass_is_counted():
    def body(rank):
        x = sw.ones(4, requires_grad=True, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        y = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]).sum()
        with CommDebugMode() as comm:
            y.backward()
        return comm.get_comm_counts()

    assert run_ranks(2, body) == [{"all_to_all": 1}, {"all_to_all": 1}]
