"""A list operator that runs again: its second call takes a shorter path than its first, and gives the same."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, RaggedShard, Replicate, Shard
from shardwise.testing import run_ranks

LAYOUTS = {
    "even": Shard(0),
    "uneven": Shard(0, sizes=[1, 5, 0]),
    "columns": Shard(1),
    "replica": Replicate(),
    "sum": Partial(),
    "ragged": RaggedShard((0, 1), (3, 11, 10)),
}
CALLS = {
    "in place": lambda a, b: torch._foreach_add_(a, b, alpha=2),
    "numbers": lambda a, b: torch._foreach_mul_(a, [2.0, 3.0]),
    "a number": lambda a, b: torch._foreach_div_(a, 4.0),
    "results": lambda a, b: torch._foreach_mul(a, b),
    "one operand": lambda a, b: torch._foreach_sqrt(a),
    "three operands": lambda a, b: torch._foreach_addcdiv_(a, b, b, [0.5, 0.25]),
}
SGD = {"weight_decay": 0.5, "momentum": 0.0, "lr": 0.5, "dampening": 0.0, "nesterov": False, "maximize": False}


def dense(start):
    return torch.arange(start, start + 24, dtype=torch.float64).view(6, 4)


@pytest.mark.parametrize("call", CALLS)
def test_a_second_call_gives_what_the_dense_call_gives(call):
    expected_lists = [[dense(1), dense(30).t().clone()] for _ in range(2)]
    expected = [CALLS[call](*expected_lists) for _ in range(3)]

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        for name, layout in LAYOUTS.items():
            tall, wide = dense(1), dense(30).t().clone()
            of_wide = RaggedShard((0, 1), (4, 10, 10)) if name == "ragged" else Replicate()
            lists = [
                [sw.distribute_tensor(tall, mesh, [layout]), sw.distribute_tensor(wide, mesh, [of_wide])]
                for _ in range(2)
            ]
            for turn in range(3):
                before = [tensor._version for tensor in lists[0]]
                results = CALLS[call](*lists)
                if results is None:
                    results = lists[0]
                    assert [tensor._version for tensor in results] == [version + 1 for version in before], name
                elif turn == 2:
                    for found, right in zip(results, expected[turn], strict=True):
                        torch.testing.assert_close(found.full_tensor(), right, msg=f"{call}, {name}")
            for found, right in zip(lists[0], expected_lists[0], strict=True):
                torch.testing.assert_close(found.full_tensor(), right, msg=f"{call}, {name}")

    run_ranks(3, on_rank)


def test_a_write_by_a_second_call_reaches_views_whose_values_were_sent():
    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.distribute_tensor(dense(0), mesh, [Shard(0)])
        row = x[4]
        for turn in range(1, 4):
            torch._foreach_add_([x], 1.0)
            assert torch.equal(row.full_tensor(), dense(0)[4] + turn)

    run_ranks(3, on_rank)


def test_numbers_in_lists_do_not_decide_a_layout():
    """The corrections of Adam's biases differ in every step, and nothing is decided anew."""

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        parameters = [torch.nn.Parameter(sw.distribute_tensor(dense(i), mesh, [Shard(0)])) for i in range(3)]
        for parameter in parameters:
            parameter.grad = sw.distribute_tensor(dense(1), mesh, [Shard(0)])
        optimizer = torch.optim.Adam(parameters, foreach=True)
        for _ in range(2):
            optimizer.step()
        before = sw.cache_counters().misses
        optimizer.step()
        assert sw.cache_counters().misses == before

    run_ranks(2, on_rank)


@pytest.mark.parametrize("layout", [Shard(0), Replicate(), Partial()], ids=str)
def test_a_list_that_names_a_tensor_twice_writes_to_it_twice(layout):
    lists = {
        "twice": lambda x, y: torch._foreach_add_([x, y, x], 2.0),
        "a view": lambda x, y: torch._foreach_add_([x, x[1:], y], 2.0),
        "read later": lambda x, y: torch._foreach_add_([x, y], [y, x]),
        "numbers": lambda x, y: torch._foreach_add_([x, x.t(), y], [1.0, 2.0, 3.0]),
        "differences": lambda x, y: torch._foreach_sub_([x, x], [y, y], alpha=2),
    }

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for name, call in lists.items():
            theirs = [torch.arange(16.0).view(4, 4), torch.ones(4, 4)]
            ours = [sw.distribute_tensor(tensor, mesh, [layout]) for tensor in theirs]
            theirs = [tensor.clone() for tensor in theirs]
            for _ in range(2):
                call(*ours)
                call(*theirs)
            for found, right in zip(ours, theirs, strict=True):
                torch.testing.assert_close(found.full_tensor(), right, msg=name)
                assert found._version == right._version, name

    run_ranks(2, on_rank)


@pytest.mark.parametrize("layout", [Shard(0), Replicate(), Partial()], ids=str)
def test_an_inference_tensor_is_written_to_in_inference_mode_alone(layout):
    lists = {
        "add": lambda x, y: torch._foreach_add_([x], 1.0),
        "sin": lambda x, y: torch._foreach_sin_([x]),
        "a normal one is first": lambda x, y: torch._foreach_mul_([y, x], [x, y]),
        "it is read": lambda x, y: torch._foreach_add_([y], [x]),
        "fused": lambda x, y: torch._fused_sgd_([x], [y], [], **SGD, is_first_step=False),
    }

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for name, call in lists.items():
            for make in (torch.Tensor.clone, lambda values: sw.distribute_tensor(values, mesh, [layout])):
                with torch.inference_mode():
                    x = make(torch.ones(4, 4))
                    call(x, make(torch.ones(4, 4)))
                y = make(torch.ones(4, 4))
                for _ in range(2):
                    if name in ("it is read", "fused"):
                        call(x, y)
                    else:
                        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside Infer"):
                            call(x, y)

    run_ranks(2, on_rank)
