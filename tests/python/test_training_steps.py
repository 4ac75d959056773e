"""Steps of a training in which one rank does something that the others do not: no effect, or an error on all ranks, and never an abort."""

import pytest
import torch
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

PROGRAM = "training_step_program.py"


@pytest.mark.parametrize(
    "part",
    [
        "read_alone",
        "lookups_dropped",
        "table_replaced",
        "fused_alone_in_a_layer",
        "gradient_missing",
    ],
)
@pytest.mark.parametrize("checked", ["0", "1"])
def test_without_the_order_check_and_with_it(part, checked, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_CHECK", checked)
    expect_all_well(PROGRAM, 3, part, tmp_path, timeout=120)


@pytest.mark.parametrize(
    "part", ["resharded_alone", "another_batch", "other_seeds", "fused_alone", "lookup_dropped_in_training"]
)
def test_the_order_check_names_ranks_and_lines(part, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_CHECK", "1")
    expect_all_well(PROGRAM, 3, part, tmp_path, timeout=120)


def peaks(cap, many):
    """The bytes of message buffers that a forward and its backward have made, by rank. A new thread has none; it keeps what it makes."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(256, 512, device_mesh=mesh, placements=[Shard(0)]).requires_grad_()
        if many:
            (moved,) = sw.redistribute_many([x], [[Shard(1)]], memory_cap=cap)
        else:
            moved = x.redistribute(placements=[Shard(1)], memory_cap=cap)
        forward = sw.redistribution_counters().buffer_bytes
        moved.backward(torch.ones_like(moved))
        assert torch.equal(x.grad.to_local(), torch.ones(128, 512))
        return forward, sw.redistribution_counters().buffer_bytes

    return run_ranks(2, body)


@pytest.mark.parametrize("many", [False, True])
def test_a_memory_cap_holds_in_the_backward(many):
    cap = 64 << 10
    for forward, both in peaks(0, many):
        assert forward > cap and both > cap
    for forward, both in peaks(cap, many):
        assert 0 < forward <= cap and both <= cap


def test_a_capped_move_to_replicas_has_a_capped_backward():
    """The gradient is a Partial, which is reduced."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(64, 64, device_mesh=mesh, placements=[Shard(0)]).requires_grad_()
        x.redistribute(placements=[Replicate()], memory_cap=64).sum().backward()
        assert torch.equal(x.grad.to_local(), torch.ones(32, 64))

    run_ranks(2, body)
