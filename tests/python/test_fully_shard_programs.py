"""fully_shard in programs that do more than step: the results of the whole model, or an error that all ranks get."""

import copy

import pytest
import torch
from fsdp_models import (
    IDS,
    Model,
    X,
    by_last_dim,
    expect_runs_as_whole,
    expect_same,
    full,
    loss_of,
    mlp,
    seeded,
    shard_blocks,
    shard_layers,
    steps,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import shardwise as sw
from shardwise.fsdp import MixedPrecisionPolicy, fully_shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

# Which parameters are trained


@pytest.mark.parametrize("shard", [shard_layers, lambda model, mesh: fully_shard(model, mesh=mesh)])
def test_parameters_frozen_and_thawed_later(shard):
    def before(model, step):
        model[2].requires_grad_(step in (0, 3))
        model[0].weight.requires_grad_(step != 1)

    expect_runs_as_whole(mlp, steps(5, before=before), shard=shard)


@pytest.mark.parametrize("shard", [shard_layers, lambda model, mesh: fully_shard(model, mesh=mesh)])
def test_parameters_frozen_for_a_forward_in_between(shard):
    """As PEFT's disable_adapter() does for the forward of a reference model, before the backward of the trained one."""

    def run(model, part):
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), part(X)
        for _ in range(2):
            optimizer.zero_grad()
            trained = model(x)
            model.requires_grad_(False)
            with torch.no_grad():
                reference = model(2 * x)
            model.requires_grad_(True)
            (trained - reference).square().mean().backward()
            optimizer.step()

    expect_runs_as_whole(mlp, run, shard=shard)


def test_two_models_that_train_each_other():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.makes, self.judges = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))

    def run(pair, part):
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (pair.makes, pair.judges)]
        x = part(X)
        for _ in range(3):
            pair.judges.zero_grad()
            (pair.judges(x).mean() - pair.judges(pair.makes(x).detach()).mean()).backward()
            optimizers[1].step()
            pair.judges.requires_grad_(False)
            pair.makes.zero_grad()
            pair.judges(pair.makes(x)).mean().backward()
            optimizers[0].step()
            pair.judges.requires_grad_(True)

    def shard(pair, mesh):
        fully_shard(pair.makes, mesh=mesh)
        fully_shard(pair.judges, mesh=mesh)
        return pair

    expect_runs_as_whole(Pair, run, shard=shard)


class Ways(nn.Module):
    """Rows go through one of several layers, by themselves: ranks use other parameters, and one is never used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.ways = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.unused = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = torch.tanh(self.first(x))
        results = torch.zeros_like(x)
        ways = (x[:, 0] * 1000 + self.calls).long() % 3
        for number, way in enumerate(self.ways):
            rows = (ways == number).nonzero().flatten()
            if len(rows):
                results = results.index_add(0, rows, way(x[rows]))
        return results


class ManyWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Ways(), Ways(), Ways()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


ROWS = torch.rand(4, 8, generator=torch.Generator().manual_seed(3))  # few: some way is not taken on each rank


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("reshard", [True, False])
def test_ranks_that_use_other_parameters(shape, reshard):
    given = seeded(ManyWays)
    dense = copy.deepcopy(given)

    def run(model, x, n_accumulated):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            for step in range(n_accumulated):
                if model is not dense:
                    model.set_requires_gradient_sync(step == n_accumulated - 1)
                model(x).square().mean().backward()
            optimizer.step()

    for n_accumulated in (1, 2):
        dense = copy.deepcopy(given)
        run(dense, ROWS, n_accumulated)

        def body(rank, dense=dense, n_accumulated=n_accumulated):
            mesh = sw.init_device_mesh("cpu", shape)
            model = shard_blocks(copy.deepcopy(given), mesh, reshard_after_forward=reshard)
            run(model, ROWS.chunk(mesh.size())[mesh.get_rank()], n_accumulated)
            expect_same(model, dense)
            assert model.blocks[0].unused.weight.grad is None

        run_ranks(2 if shape == (2,) else 4, body, timeout=30)


def expect_means(make, loss, shard, **tolerance):
    """Gradients are the mean of those of `loss(model, rank)` on each of two ranks."""
    given = seeded(make)
    dense = copy.deepcopy(given)
    (sum(loss(dense, rank) for rank in range(2)) / 2).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = shard(copy.deepcopy(given), mesh)
        loss(model, rank).backward()
        expect_same(model, dense, **tolerance)

    run_ranks(2, body, timeout=30)


def test_ranks_that_use_other_parameters_around_a_unit():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x, uses_both):
            y = self.body(x).tanh()
            return self.a(y) + self.b(y) if uses_both else self.a(y)

    def shard(model, mesh):
        fully_shard(model.body, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    expect_means(Heads, lambda model, rank: model(X.chunk(2)[rank], rank == 0).square().mean(), shard)


class Skipping(nn.Module):
    """Blocks, one of which some ranks leave out."""

    class Block(nn.Linear):
        def forward(self, x, instead=None):
            return super().forward(x) if instead is None else instead(x)

    def __init__(self, between):
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(8, 8) for _ in range(4)])
        self.between = between

    def forward(self, x, instead):
        for number, block in enumerate(self.blocks):
            x = self.between(block(x, instead if number == 2 else None))
        return x


@pytest.mark.parametrize("between", [torch.tanh, lambda x: x], ids=["tanh between", "one after the other"])
@pytest.mark.parametrize("instead", [lambda x: x * 1.0, lambda x: x], ids=["product", "input"])
def test_a_block_that_one_rank_skips(instead, between):
    def shard(model, mesh):
        shard_blocks(model, mesh, reshard_after_forward=True).set_reduce_scatter_unused_params(True)
        return model

    expect_means(
        lambda: Skipping(between),
        lambda model, rank: model(X.chunk(2)[rank], instead if rank == 1 else None).square().mean(),
        shard,
    )


def test_sums_are_sent_in_one_dtype_where_a_rank_has_none():
    def loss(model, rank, step):
        outputs = [layer(X.chunk(2)[rank]) for layer in model]
        return sum(output.float().square().mean() for output in (outputs[:1] if step == 0 and rank == 1 else outputs))

    given = seeded(lambda: nn.Sequential(nn.Linear(8, 5), nn.Linear(8, 3)))
    dense = copy.deepcopy(given)
    (sum(loss(dense, rank, step) for rank in range(2) for step in range(2)) / 2).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = shard_layers(copy.deepcopy(given), mesh, reshard_after_forward=False, mp_policy=policy)
        for step in range(2):
            model.set_requires_gradient_sync(step == 1)
            loss(model, rank, step).backward()
        expect_same(model, dense, rtol=2e-2, atol=2e-2)

    run_ranks(2, body, timeout=30)


def test_a_unit_that_the_last_backward_does_not_reach():
    def run(model, part):
        for step in range(2):
            if isinstance(model, sw.fsdp.FSDPModule):
                model.set_requires_gradient_sync(step == 1)
            y = model[0](part(X))
            (model[2](y.tanh()).square().mean() if step == 0 else y.square().mean()).backward()

    def shard(model, mesh):
        fully_shard(model[0], mesh=mesh)
        fully_shard(model[2], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    expect_runs_as_whole(lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)), run, shard=shard)


# Where gradients come from


class Keeping(nn.Module):
    """Blocks keep a loss of their own, as mixtures of experts do."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.layer = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            gate = self.gate(x)
            self.kept = gate
            return self.layer(x * gate.sigmoid())

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(), self.Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def kept_first(model, x):
    y = model(x)
    return sum(block.kept.square().mean() for block in model.blocks) + y.square().mean()


def kept_alone(model, x):
    model(x)
    return model.blocks[0].kept.square().mean()


@pytest.mark.parametrize("loss", [kept_first, kept_alone])
@pytest.mark.parametrize("shard", [shard_blocks, lambda model, mesh: fully_shard(model, mesh=mesh)])
def test_losses_of_what_a_module_keeps(loss, shard):
    expect_runs_as_whole(Keeping, steps(3, loss), shard=shard)


def test_outputs_that_are_inputs_and_changed_in_place():
    class Through(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x).mul_(2).add_(1)
            return x

    expect_runs_as_whole(Through, steps(3), shard=shard_blocks)


def test_gradients_of_gradients():
    def loss(model, x):
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return grad.square().mean()

    def shard(model, mesh):
        fully_shard(model, mesh=mesh, reshard_after_forward=False).set_reshard_after_backward(False)
        return model

    expect_runs_as_whole(mlp, steps(1, loss), shard=shard)


def test_gradients_within_a_forward():
    class Forces(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy, self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)

        def forward(self, x):
            x = x.clone().requires_grad_()
            (forces,) = torch.autograd.grad(self.energy(x).sum(), x)
            return self.head(forces)

    def shard(model, mesh):
        fully_shard(model.energy, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    expect_runs_as_whole(Forces, steps(3), shard=shard)


def of_a_leaf(model, x):
    return model(x.clone().requires_grad_()).square().mean()


def of_a_leaf_checkpointed(model, x):
    return checkpoint(model, x.clone().requires_grad_(), use_reentrant=True).square().mean()


@pytest.mark.parametrize("loss", [of_a_leaf, of_a_leaf_checkpointed])
@pytest.mark.parametrize("parametrized", ["by torch", "in its forward"])
def test_inputs_that_are_leaves(loss, parametrized):
    class Adapted(nn.Linear):
        def __init__(self):
            super().__init__(8, 5)
            self.down, self.up = nn.Parameter(torch.rand(2, 8)), nn.Parameter(torch.rand(5, 2))

        def forward(self, x):
            return nn.functional.linear(x, self.weight + self.up @ self.down, self.bias)

    def make():
        linear = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5)) if parametrized == "by torch" else Adapted()
        return nn.Sequential(linear)

    expect_runs_as_whole(make, steps(3, loss))


def test_a_leaf_gets_its_gradient_and_the_module_one_exchange():
    given = seeded(lambda: nn.Linear(8, 5))
    expected = X.clone().requires_grad_()
    given(expected).square().sum().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(copy.deepcopy(given), mesh=mesh)
        x = X.clone().requires_grad_()
        with sw.CommDebugMode() as comm:
            model(x).square().sum().backward()
        assert dict(comm.get_comm_counts()) == {"all_gather": 1, "reduce_scatter": 1}
        torch.testing.assert_close(x.grad, expected.grad)
        expect_same(model, given)

    run_ranks(2, body)


def test_an_embedding_with_sparse_gradients():
    def shard(model, mesh):
        model.sparse = True
        return fully_shard(model, mesh=mesh)

    ids = torch.arange(12) % 7
    expect_runs_as_whole(lambda: nn.Embedding(11, 6), steps(3, x=ids), shard=shard)


def test_an_optimizer_in_the_backward():
    def run(model, part):
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(part(X)).square().mean().backward()

    expect_runs_as_whole(mlp, run, shard=shard_layers)


# Modules


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_modules_that_list_their_parameters(kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = getattr(nn, kind)(8, 5, num_layers=2, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.cells(x[:, None].expand(-1, 3, -1))[0]

    expect_runs_as_whole(Recurrent, steps(3))


def test_parametrized_weights():
    expect_runs_as_whole(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 5))), steps(3))


def test_parameters_of_other_strides_and_dtypes():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.turned = nn.Parameter(torch.rand(5, 8).t())
            self.pairs = nn.Parameter(torch.rand(4, 5, dtype=torch.complex64))
            self.whole_numbers = nn.Parameter(torch.arange(5), requires_grad=False)
            self.empty = nn.Parameter(torch.rand(0, 5))
            self.filters = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)

        def forward(self, x):
            y = x @ self.turned + self.whole_numbers
            image = x[:, :3, None, None].expand(-1, 3, 3, 3)
            return (y.to(torch.complex64) @ self.pairs.t()).abs() + self.empty.sum() + self.filters(image).mean((2, 3))

    for n_ranks in (3, 4):
        expect_runs_as_whole(Odd, steps(2), n_ranks)

    def add_up(model, part):
        for step in range(2):
            if isinstance(model, sw.fsdp.FSDPModule):
                model.set_requires_gradient_sync(step == 1)
            model(part(X)).square().mean().backward()

    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for run in (steps(2), add_up):
        expect_runs_as_whole(Odd, run, shard=lambda model, mesh: fully_shard(model, mesh=mesh, mp_policy=policy))


@pytest.mark.parametrize("change", ["module", "inner module", "data"])
def test_a_dtype_that_changes_later(change):
    def run(model, part):
        for step in range(2):
            model.zero_grad()
            model(part(X.double() if step else X)).square().mean().backward()
            if step:
                break
            if change == "module":
                model.double()
            for layer in model:
                if change == "inner module":
                    layer.double()
                elif change == "data":
                    for parameter in layer.parameters():
                        parameter.data = parameter.data.double()
            model.zero_grad()

    expect_runs_as_whole(mlp, run, rtol=1e-8, atol=1e-8)


def test_a_dtype_that_changes_between_sums():
    def run(model, part):
        for step in range(2):
            if isinstance(model, sw.fsdp.FSDPModule):
                model.set_requires_gradient_sync(step == 1)
            model(part(X.double() if step else X)).square().mean().backward()
            model.double()

    expect_runs_as_whole(mlp, run, rtol=1e-5, atol=1e-6)


class Sharing(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared, nn.Linear(8, 8))])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def shared_first(model, mesh):
    fully_shard(model.blocks[0][0], mesh=mesh)
    fully_shard(model.blocks[1], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def those_that_share_together(model, mesh):
    fully_shard([model.blocks[0], model.blocks[1], model.blocks[0]], mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize(
    "shard", [shared_first, those_that_share_together, lambda model, mesh: fully_shard(model, mesh=mesh)]
)
def test_modules_that_others_share(shard):
    expect_runs_as_whole(Sharing, steps(3), shard=shard)


def test_a_shared_module_is_not_called_outside_of_its_group():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = Sharing()
        fully_shard(model.blocks[0], mesh=mesh)
        with pytest.raises(ValueError, match="a module that also has it"):
            fully_shard(model.blocks[1], mesh=mesh)
        fully_shard(model, mesh=mesh)
        with pytest.raises(ValueError, match="Linear is called outside of the group of Sequential"):
            model(X)
        torch.testing.assert_close(model.blocks[0](X).shape, X.shape)

    run_ranks(2, body)


def test_a_list_of_modules_within_each_other():
    expect_runs_as_whole(
        mlp,
        steps(3),
        shard=lambda model, mesh: fully_shard([model, model[0], model[2]], mesh=mesh)[0],
    )


def test_ranks_outside_of_the_mesh():
    given = seeded(mlp)
    dense = copy.deepcopy(given)
    dense(X).square().mean().backward()

    def body(rank):
        mesh = sw.DeviceMesh("cpu", [2, 0])
        model = shard_layers(copy.deepcopy(given), mesh)
        assert model[0].weight.shape == (5, 8)
        if rank == 1:
            assert model[0].weight.to_local().numel() == 0
            with pytest.raises(ValueError, match="is called on a rank that is not on"):
                model(X)
        else:
            model(X.chunk(2)[mesh.get_local_rank()]).square().mean().backward()
            expect_same(model, dense)
        model.unshard()
        model.reshard()
        model.double()
        assert set(model.state_dict()) == set(dense.state_dict())

    run_ranks(3, body)


def test_values_go_to_other_meshes():
    given = seeded(Model)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        source = shard_blocks(copy.deepcopy(given), mesh)
        loss_of(source, IDS[0])
        grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with torch.device("meta"):
            model = Model()
        parallelize_module(model, grid["tp"], {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()})
        shard_blocks(model, grid["dp"], shard_placement_fn=by_last_dim)
        model.to_empty(device="cpu")
        for name, value in model.state_dict().items():
            whole = source.state_dict()[name].full_tensor()
            value.copy_(sw.distribute_tensor(whole, value.device_mesh, value.placements))
        torch.testing.assert_close(full(model(IDS[0])), given(IDS[0]))
        model.load_state_dict(
            {
                name: sw.distribute_tensor(given.state_dict()[name] * 0, value.device_mesh, value.placements)
                for name, value in model.state_dict().items()
            },
            assign=True,
        )
        assert (full(model(IDS[0])) == 0).all()

    run_ranks(4, body)
