"""What programs for torch's fully_shard expect of it: modules without parameters, conversions, torch.func, and the names that it has."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from fsdp_models import X, expect_runs_as_whole, expect_same, mlp, seeded, shard_layers
from torch import func, nn

import shardwise as sw
from shardwise.fsdp import FSDPModule, fully_shard, share_comm_ctx
from shardwise.testing import run_ranks


def on_layers_and_activations(model, mesh, **options):
    for each in model:
        fully_shard(each, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def train(model, part):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(part(X)).square().mean().backward()
        if step < 2:
            optimizer.step()


def test_torchs_functions_leave_out_the_modules_in_it():
    """torch's replicate() and fully_shard take what the modules around have left."""
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        fully_shard(model[0], mesh=mesh)
        assert _fsdp_init._get_managed_modules((model,)) == [model[1], model]
        assert _fsdp_init._get_managed_modules((model[0],)) == [model[0]]

    run_ranks(2, body)


def test_modules_without_parameters():
    expect_runs_as_whole(mlp, train, shard=on_layers_and_activations)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        relu = fully_shard(nn.ReLU(), mesh=mesh)
        assert isinstance(relu, FSDPModule) and isinstance(relu, nn.ReLU)
        with sw.CommDebugMode() as comm:
            relu.unshard(async_op=True).wait()
            x = torch.tensor([-1.0, 1.0], requires_grad=True)
            relu(x).sum().backward()
            relu.reshard()
            relu.set_requires_gradient_sync(False)
            relu.set_modules_to_forward_prefetch([relu])
            assert relu.to(torch.float64) is relu
        assert x.grad.tolist() == [0, 1] and comm.get_total_counts() == 0
        layer = nn.Linear(2, 2)
        fully_shard(layer, mesh=mesh, ignored_params=set(layer.parameters()))
        assert not isinstance(layer.weight, sw.DTensor) and layer(torch.ones(2)).requires_grad

    run_ranks(2, body)


def test_state():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = mlp()
        assert fully_shard.state(model) is None
        fully_shard([model[0], model[2]], mesh=mesh)
        fully_shard(model, mesh=mesh)
        state = fully_shard.state(model[0])
        assert state is not None and state is fully_shard.state(model[2])
        assert fully_shard.state(model) is not state and fully_shard.state(model[4]) is None

    run_ranks(2, body)


@pytest.mark.parametrize("swaps", [False, True])
def test_conversions_keep_the_parameters(swaps):
    given = seeded(mlp)
    dense = copy.deepcopy(given)
    part = X.double()
    torch.nn.functional.mse_loss(dense(X), X[:, :3]).backward()
    dense.to(torch.float64)
    torch.nn.functional.mse_loss(dense(part), part[:, :3]).backward()
    torch.optim.SGD(dense.parameters(), lr=0.1).step()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        model = shard_layers(copy.deepcopy(given), mesh)
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        x = X.chunk(3)[rank]
        torch.nn.functional.mse_loss(model(x), x[:, :3]).backward()
        assert model.to(torch.float64) is model
        assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
        assert all(each.dtype == each.grad.dtype == torch.float64 for each in parameters)
        torch.nn.functional.mse_loss(model(x.double()), x[:, :3].double()).backward()
        optimizer.step()
        expect_same(model, dense)

    torch.__future__.set_swap_module_params_on_conversion(swaps)
    try:
        run_ranks(3, body)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def tangent_of(model, x):
    return func.jvp(model, (x,), (torch.ones_like(x),))[1]


def dual_tangent_of(model, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("tangent", [tangent_of, dual_tangent_of])
def test_gradients_of_tangents(tangent, reshard):
    """By one rank: ranks that are threads share the forward-mode level."""
    given = seeded(mlp)
    dense = copy.deepcopy(given)
    expected = tangent(dense, X)
    expected.square().mean().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        model = shard_layers(copy.deepcopy(given), mesh, reshard_after_forward=reshard)
        found = tangent(model, X)
        torch.testing.assert_close(found, expected)
        found.square().mean().backward()
        for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
            gradient = torch.zeros_like(theirs) if ours.grad is None else ours.grad.full_tensor()
            torch.testing.assert_close(gradient, torch.zeros_like(theirs) if theirs.grad is None else theirs.grad)
        model.zero_grad()
        model(X).square().mean().backward()
        assert all(each.grad is not None for each in model.parameters())

    run_ranks(1, body)


TRANSFORMS = {
    "grad": lambda model, x: func.grad(lambda x: model(x).square().sum())(x),
    "vmap": lambda model, x: func.vmap(model)(x),
    "jacrev": lambda model, x: func.jacrev(model)(x),
    "vjp": lambda model, x: func.vjp(model, x)[1](torch.ones(len(x), 3))[0],
}


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func(transform, reshard):
    given = seeded(mlp)
    expected = TRANSFORMS[transform](copy.deepcopy(given), X)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        model = shard_layers(copy.deepcopy(given), mesh, reshard_after_forward=reshard)
        for _ in range(2):
            torch.testing.assert_close(TRANSFORMS[transform](model, X).detach(), expected.detach())
        model(X.chunk(3)[rank]).square().mean().backward()
        dense = copy.deepcopy(given)
        dense(X).square().mean().backward()
        expect_same(model, dense)

    run_ranks(3, body, timeout=60)


def test_parameters_after_a_forward():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for reshard, stays in ((True, False), (False, True), (None, True), (1, True), (2, False)):
            model = fully_shard(seeded(mlp), mesh=mesh, reshard_after_forward=reshard)
            loss = model(X).sum()
            assert isinstance(model[0].weight, sw.DTensor) != stays, reshard
            assert all(isinstance(each, sw.DTensor) for each in model.state_dict().values())
            loss.backward()
            assert isinstance(model[0].weight, sw.DTensor)
            with torch.no_grad():
                model(X)
            assert isinstance(model[0].weight, sw.DTensor)
            with pytest.raises(RuntimeError):
                model(X[:, :5])
            assert isinstance(model[0].weight, sw.DTensor)
            model.requires_grad_(False)
            model(X)
            assert isinstance(model[0].weight, sw.DTensor)

    run_ranks(2, body)


def test_a_loss_of_a_parameter_that_stays():
    """Such as a cross entropy in chunks, with the weight of the last layer."""

    def run(model, part):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = model(part(X)).mean() + sum(
                (rows @ model.head.weight.T).square().mean() for rows in part(X).chunk(2)
            )
            model.zero_grad(set_to_none=step == 1)
            loss.backward()
            if step < 2:
                optimizer.step()

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.body(x).square()

    def shard(model, mesh):
        fully_shard(model.body, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    expect_runs_as_whole(Headed, run, n_ranks=2, shard=shard)


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 10, 3), nn.ReLU(), nn.Conv2d(10, 5, 3))


@pytest.mark.parametrize("of_parameters", [True, False])
def test_channels_last(of_parameters):
    given = seeded(convolutions)
    if of_parameters:
        given = given.to(memory_format=torch.channels_last)
    x = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    dense = copy.deepcopy(given)
    dense(x).square().mean().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = copy.deepcopy(given)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(x.chunk(4)[rank]).square().mean().backward()
        expect_same(model, dense)
        for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
            assert ours.stride() == ours.grad.stride() == theirs.stride()
            own = ours.to_local()
            assert own.numel() == 0 or own.stride() == ours.grad.to_local().stride() == theirs.stride()

    run_ranks(4, body)


def test_frozen_and_tied_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.first.bias.requires_grad_(False)
            self.third.requires_grad_(False)

        def forward(self, x):
            return self.third(self.second(torch.tanh(self.first(x))))

    def run(model, part):
        train(model, part)
        assert model.first.bias.grad is None and model.third.weight.grad is None
        assert model.first.weight is model.second.weight

    expect_runs_as_whole(Tied, run)
    for layers in (["third"], ["first", "second"]):

        def shard(model, mesh, layers=layers):
            fully_shard([getattr(model, name) for name in layers], mesh=mesh)
            return fully_shard(model, mesh=mesh)

        expect_runs_as_whole(Tied, run, shard=shard)


def test_hook_of_reduced_gradients():
    given = seeded(mlp)
    dense = copy.deepcopy(given)
    dense(X).square().mean().backward()
    for each in dense.parameters():
        each.grad.mul_(3)

    def body(rank):
        for shape, names in (((4,), ("dp",)), ((2, 2), ("replicate", "shard"))):
            mesh = sw.init_device_mesh("cpu", shape, mesh_dim_names=names)
            model, seen = shard_layers(copy.deepcopy(given), mesh), []

            def tripled(gradients, seen=seen):
                seen.append((gradients.dim(), gradients.isfinite().all().item()))
                gradients.mul_(3)

            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_all_reduce_hook(tripled)
            model.set_requires_all_reduce(False)
            model(X.chunk(4)[rank]).square().mean().backward()
            assert len(seen) == (3 if len(shape) == 1 else 0)  # not while sums wait for replicas
            model.zero_grad()
            model.reset_iter_state()
            seen.clear()
            model.set_requires_all_reduce(True)
            model(X.chunk(4)[rank]).square().mean().backward()
            assert seen == [(1, True)] * 3
            expect_same(model, dense)
            model.to(torch.float64)  # and the hook stays
            model.zero_grad()
            model(X.chunk(4)[rank].double()).square().mean().backward()
            assert len(seen) == 6

    run_ranks(4, body)


def test_settings_without_an_effect():
    def run(model, part):
        if isinstance(model, FSDPModule):
            share_comm_ctx([])
            share_comm_ctx([model, model[0]])
            model.set_separate_reduce_scatter_group()
            model.set_separate_reduce_scatter_group(False, recurse=False)
            model.set_reduce_scatter_max_input_buffers(2)
            model.set_allocate_memory_from_process_group_for_comm(True)
            model._set_unshard_async_op(True)
            model.set_post_optim_event(torch.Event("cpu"))
            model.set_post_optim_event(None)
        train(model, part)

    expect_runs_as_whole(mlp, run, shard=shard_layers)


def test_counts_by_torchs_operators():
    ops = torch.ops.c10d

    def body(rank):
        for shape, reductions in (((4,), (2, 0)), ((2, 2), (2, 2)), ((4, 1), (0, 2))):
            names = ("dp",) if len(shape) == 1 else ("replicate", "shard")
            mesh = sw.init_device_mesh("cpu", shape, mesh_dim_names=names)
            model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3))
            fully_shard(model[0], mesh=mesh)
            fully_shard(model, mesh=mesh)
            with sw.CommDebugMode() as comm:
                model(X).sum().backward()
            counts = comm.get_comm_counts()
            assert (counts[ops._reduce_scatter_base_], counts[ops.allreduce_]) == reductions, shape
            assert counts[ops._allgather_base_] == (0 if shape[-1] == 1 else 3), shape
            assert comm.get_total_counts() == sum(counts.values())

    run_ranks(4, body)
