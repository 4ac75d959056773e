"""What a program sets of fully sharded modules: when gradients are reduced, what is gathered ahead, what unused parameters get."""

import copy

import pytest
import torch
from fsdp_models import IDS, Model, expect_same, full, loss_of, rows_of, seeded, shard_blocks
from torch import nn

import shardwise as sw
from shardwise.fsdp import fully_shard
from shardwise.testing import run_ranks


def test_gradients_are_added_up_without_messages():
    given = seeded(Model)
    dense = copy.deepcopy(given)
    sum(loss_of(dense, ids) for ids in IDS).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for reshards in (True, False):
            model = shard_blocks(copy.deepcopy(given), mesh)
            model.set_reshard_after_forward(reshards)
            model.set_reshard_after_backward(reshards)
            for step, ids in enumerate(IDS):
                model.set_requires_gradient_sync(step == len(IDS) - 1)
                with sw.CommDebugMode() as comm:
                    loss_of(model, rows_of(ids, mesh.get_rank(), 4)).backward()
                assert comm.get_comm_counts().get("reduce_scatter", 0) == (4 if step == len(IDS) - 1 else 0)
                assert reshards or step == 0 or "all_gather" not in comm.get_comm_counts()
            expect_same(model, dense)

    run_ranks(4, body)


def test_two_forwards_before_a_backward():
    given = seeded(Model)
    dense = copy.deepcopy(given)
    (loss_of(dense, IDS[0]) + loss_of(dense, IDS[1])).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        for together in (True, False):
            model.zero_grad()
            losses = [loss_of(model, rows_of(ids, mesh.get_rank(), 4)) for ids in IDS[:2]]
            if together:
                sum(losses).backward()
            else:
                model.set_is_last_backward(False)
                losses[1].backward()
                model.set_is_last_backward(True)
                losses[0].backward()
            expect_same(model, dense)

    run_ranks(4, body)


def test_all_reduce_of_replicas_waits():
    given = seeded(Model)
    dense = copy.deepcopy(given)
    sum(loss_of(dense, ids) for ids in IDS).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = shard_blocks(copy.deepcopy(given), mesh)
        for step, ids in enumerate(IDS):
            model.set_requires_all_reduce(step == len(IDS) - 1)
            with sw.CommDebugMode() as comm:
                loss_of(model, rows_of(ids, mesh.get_rank(), 4)).backward()
            assert comm.get_comm_counts().get("all_reduce", 0) == (4 if step == len(IDS) - 1 else 0)
        expect_same(model, dense)

    run_ranks(4, body)


def test_all_reduce_of_replicas_is_not_forgotten_where_the_last_backward_misses_a_unit():
    given = seeded(lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)))
    x = torch.rand(8, 6, generator=torch.Generator().manual_seed(2))

    def loss(model, x, step):
        y = model[0](x)
        return (model[1](y) if step == 0 else y).square().mean()

    dense = copy.deepcopy(given)
    sum(loss(dense, x, step) for step in range(2)).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = copy.deepcopy(given)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for step in range(2):
            model.set_requires_all_reduce(step == 1)
            loss(model, rows_of(x, mesh.get_rank(), 4), step).backward()
        expect_same(model, dense)

    run_ranks(4, body, timeout=60)


def test_unshard_and_prefetch():
    given = seeded(Model)
    dense = copy.deepcopy(given)
    loss_of(dense, IDS[0]).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        first, second, third = model.blocks
        first.set_modules_to_forward_prefetch([second, third])
        third.set_modules_to_backward_prefetch([second, first])
        handle = first.unshard(async_op=True)
        handle.wait()
        assert type(first.up.weight) is nn.Parameter
        torch.testing.assert_close(first.up.weight, given.blocks[0].up.weight)
        loss_of(model, rows_of(IDS[0], mesh.get_rank(), 4)).backward()
        expect_same(model, dense)
        first.unshard()
        first.reshard()
        assert isinstance(first.up.weight, sw.DTensor)

    run_ranks(4, body)


@pytest.mark.parametrize("change", ["to", "to_empty", "assign"])
def test_what_was_set_holds_for_other_parameters(change):
    given = seeded(Model)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        first, _, third = model.blocks
        first.set_modules_to_forward_prefetch(list(model.blocks[1:]))
        model.set_modules_to_backward_prefetch([third])
        third.set_modules_to_backward_prefetch(list(model.blocks[:2]))
        for each in (model, *model.blocks):
            each.set_gradient_divide_factor(1.0)
        values = {key: value.clone() for key, value in model.state_dict().items()}
        if change == "to":
            model.to("cpu")
        elif change == "to_empty":
            model.to_empty(device="cpu")
        model.load_state_dict(values, assign=change == "assign")
        n_gathered = []

        def count(*_):
            n_gathered.append(comm.get_comm_counts().get("all_gather", 0))

        first.up.register_forward_pre_hook(count)
        third.up.register_forward_hook(lambda module, args, output: output.register_hook(count) and None)
        with sw.CommDebugMode() as comm:
            loss_of(model, IDS[0][: 4 * (rank + 1)]).backward()
        assert n_gathered == [4, 4 + 3]  # all groups, and the blocks again
        dense = copy.deepcopy(given)
        sum(loss_of(dense, IDS[0][: 4 * (index + 1)]) for index in range(2)).backward()
        expect_same(model, dense)

    run_ranks(2, body)


def test_a_backward_that_reads_no_parameter():
    class Words(nn.Embedding):
        def forward(self, ids):
            words = super().forward(ids)
            return words, 2 * words

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(Words(11, 6), mesh=mesh, reshard_after_forward=True)
        model.set_unshard_in_backward(False)
        words, doubled = model(IDS[0])
        with sw.CommDebugMode() as comm:
            (words.sum() + doubled.sum()).backward()
        assert dict(comm.get_comm_counts()) == {"reduce_scatter": 1}

    run_ranks(2, body)


class Both(nn.Module):
    """Two ways from one input; the second is gone twice."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 6)])

    def forward(self, x):
        return self.ways[0](x).square().mean(), self.ways[1](self.ways[1](x)).square().mean()


def shard_both(given, mesh):
    model = copy.deepcopy(given)
    for way in model.ways:
        fully_shard(way, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh).set_reshard_after_forward(False)
    model.set_reduce_scatter_unused_params(True)
    return model


def in_its_backward(model, x, uses_second):
    a, b = model(x)
    (a + b if uses_second else a).backward()


def in_a_second_backward(model, x, uses_second):
    a, b = model(x)
    (a + b).backward(retain_graph=True)
    (2 * a + b if uses_second else 2 * a).backward()


def in_the_backward_of_a_second_forward(model, x, uses_second):
    (first, second), (a, b) = model(x), model(2 * x)
    (a + b).backward()
    (first + second if uses_second else first).backward()


@pytest.mark.parametrize("is_leaf", [False, True])
@pytest.mark.parametrize("run", [in_its_backward, in_a_second_backward, in_the_backward_of_a_second_forward])
def test_outputs_that_one_rank_ignores(run, is_leaf):
    def run_rank(model, rank):
        run(model, x[rank].clone().requires_grad_(is_leaf), uses_second=rank == 0)

    given = seeded(Both)
    x = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(2))
    dense = copy.deepcopy(given)
    for rank in range(2):
        run_rank(dense, rank)
    for parameter in dense.parameters():
        parameter.grad /= 2

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = shard_both(given, mesh)
        run_rank(model, rank)
        expect_same(model, dense)

    run_ranks(2, body, timeout=30)


def test_unused_parameters_are_zeros_in_each_backward_of_a_forward():
    given = seeded(Both)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = shard_both(given, mesh)
        for _ in range(2):
            a, b = model(torch.ones(3, 6))
            (a + b).backward(retain_graph=True)
            model.zero_grad()
            a.backward()
            assert all(full(each.grad).count_nonzero() == 0 for each in model.ways[1].parameters())
            model.zero_grad()
        model.ways[0](torch.ones(3, 6)).sum().backward()  # within which the second way has no part
        assert all(each.grad is None for each in model.ways[1].parameters())

    run_ranks(2, body, timeout=30)


def test_unused_parameters_are_zeros_where_asked():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.ways = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

        def forward(self, x, way):
            return self.ways[way](x)

    given = seeded(Either)
    x = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(2))
    dense = copy.deepcopy(given)
    (sum(dense(x[way], way).square().mean() for way in range(2)) / 2).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(copy.deepcopy(given), mesh=mesh)
        model.set_reduce_scatter_unused_params(True)
        way = mesh.get_rank()
        model(x[way], way).square().mean().backward()
        expect_same(model, dense)

    run_ranks(2, body)
