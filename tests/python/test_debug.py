"""Counted communication."""

import json

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import CommDebugMode, Partial, Replicate, Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks


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

    assert run_ranks(2, body) == [{"reduce_scatter": 1}, {"reduce_scatter": 1}]


# placements before and after, what the messages amount to, torch's operator for it
@pytest.mark.parametrize(
    ("source", "target", "kind", "operator"),
    [
        (Shard(0), Replicate(), "all_gather", "all_gather_into_tensor"),
        (Shard(0), Shard(1), "all_to_all", "all_to_all_single"),
        (Partial(), Shard(0), "reduce_scatter", "reduce_scatter_tensor"),
        (Partial(), Replicate(), "all_reduce", "all_reduce"),
    ],
)
def test_collectives_count_as_what_they_amount_to(source, target, kind, operator):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.DTensor.from_local(torch.ones(4, 4), mesh, [source])
        with CommDebugMode() as comm:
            x.redistribute(placements=[target])
        counts = comm.get_comm_counts()
        assert counts == comm.comm_counts == {kind: 1} and counts["broadcast"] == 0
        packet = getattr(torch.ops.c10d_functional, operator)
        assert counts[packet] == counts.get(packet) == counts[packet.default] == 1 and packet in counts
        assert (
            counts[torch.ops.c10d_functional.broadcast] == 0 and counts.get(torch.ops.c10d_functional.broadcast) is None
        )
        assert counts.by_operator() == {packet: 1} and repr(comm) == "CommDebugMode(get_total_counts()=1)"

    run_ranks(3, body)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def parallel_stack(mesh):
    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    return parallelize_module(Stack(), mesh, plan)


def test_collectives_are_counted_by_module_forward_and_backward():
    def body(rank):
        model = parallel_stack(sw.init_device_mesh("cpu", (2,)))
        n_hooks = [len(module._forward_hooks) for module in model.modules()]
        x = torch.ones(3, 4, requires_grad=True)
        comm = CommDebugMode()
        for _ in range(2):  # what an earlier block saw is forgotten
            with comm:
                model(x).sum().backward()
        counts = comm.comm_module_counts
        assert counts["Global"] == {"forward": {"all_reduce": 2}, "backward": {"all_reduce": 2}}
        assert counts["Stack"] == counts["Global"]
        assert counts["Stack.blocks.1"] == {"forward": {"all_reduce": 1}, "backward": {"all_reduce": 1}}
        assert counts["Stack.blocks.0.down"]["forward"] == {"all_reduce": 1}
        assert counts["Stack.blocks.0.down"]["forward"][torch.ops.c10d_functional.all_reduce] == 1
        assert "Stack.blocks.0.up" not in counts or counts["Stack.blocks.0.up"]["forward"] == {}
        up = comm.get_parameter_info()["Stack.blocks.1.up"]
        assert set(up) == {"weight", "bias"}
        assert comm.get_sharding_info()["Stack.blocks.1.down.weight"] == (Shard(1),)
        assert len(comm.get_sharding_info()) == 8
        with comm:
            assert comm.get_sharding_info() == comm.get_parameter_info() == {}
        assert [len(module._forward_hooks) for module in model.modules()] == n_hooks
        assert comm.comm_module_counts == {"Global": {"forward": {}, "backward": {}}}

    run_ranks(2, body)


def test_a_module_that_fails_leaves_no_hook_and_no_place_behind():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    def body(rank):
        x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        model = nn.Sequential(nn.Identity(), Failing())
        with CommDebugMode() as comm:
            with pytest.raises(RuntimeError, match="no"):
                model(x)
            x.full_tensor()
        assert comm.comm_module_counts == {"Global": {"forward": {"all_gather": 1}, "backward": {}}}
        assert not any(module._forward_hooks for module in model.modules())

    run_ranks(2, body)


def test_tables_and_dumps_tell_modules_collectives_and_operators(tmp_path):
    def body(rank):
        model = parallel_stack(sw.init_device_mesh("cpu", (2,)))
        with CommDebugMode() as comm:
            model(torch.ones(3, 4)).sum().backward()
        text, dump = tmp_path / f"{rank}.txt", tmp_path / f"{rank}.json"
        comm.log_comm_debug_tracing_table_to_file(str(text), noise_level=1)
        comm.generate_json_dump(str(dump))
        return comm.generate_comm_debug_tracing_table(0), text.read_text(), json.loads(dump.read_text())

    short, table, tree = run_ranks(2, body)[0]
    assert "        Stack.blocks.0\n" in short and "FORWARD PASS" in short and "*all_reduce: 2" in short
    assert "module type" not in short and "**aten" not in short
    assert "*module type: Linear" in table and "*weight: (Shard(1),)" in table and "aten::linear" in table
    stack = tree["children"][0]
    assert tree["fqn"] == "Global" and stack["fqn"] == "Stack" and stack["collectives_forward"] == [["all_reduce", 2]]
    down = stack["children"][1]["children"][1]
    assert down["fqn"] == "Stack.blocks.1.down" and down["module_type"] == "Linear"
    assert dict(down["parameters"]) == {"weight": "(Shard(1),)", "bias": "(Replicate(),)"}
    assert down["operations_forward"]
