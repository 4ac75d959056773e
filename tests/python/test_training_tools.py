"""Checkpointing, accumulation, averaged models, functional calls and parametrizations, as on dense tensors."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from small_models import LAYOUTS, MLP, X, expect_as_dense, expect_same, replicas_on, sharded
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize
from torch.optim import swa_utils
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

REENTRANT = pytest.mark.parametrize("use_reentrant", [False, True], ids=["not reentrant", "reentrant"])


def gradients(model, x, y):
    y.float().square().sum().backward()
    return [y.float(), x.grad, *(parameter.grad for parameter in model.parameters())]


@REENTRANT
def test_checkpointed_blocks_give_the_gradients(use_reentrant):
    def train(model, replicate):
        x = replicate(X).requires_grad_()

        def outer(y):
            return model[2](checkpoint(lambda z: F.relu(model[0](z)), y, use_reentrant=use_reentrant))

        return gradients(model, x, checkpoint(outer, x, use_reentrant=use_reentrant))

    def in_sequence(model, replicate):
        x = replicate(X).requires_grad_()
        return gradients(model, x, checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant))

    def under_autocast(model, replicate):
        x = replicate(X).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=use_reentrant)
        return gradients(model, x, y)

    expect_as_dense(train)
    expect_as_dense(in_sequence)
    expect_as_dense(under_autocast, tolerance=5e-2)


def test_policies_say_what_is_saved():
    def policy(context, op, *args, **kwargs):
        is_product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def train(model, replicate):
        x = replicate(X).requires_grad_()
        contexts = partial(create_selective_checkpoint_contexts, policy)
        return gradients(model, x, checkpoint(model, x, use_reentrant=False, context_fn=contexts))

    expect_as_dense(train)


@REENTRANT
@pytest.mark.parametrize("placement", [Shard(0), Shard(1, sizes=[1, 0, 3, 0]), Replicate()], ids=str)
def test_random_numbers_are_drawn_again_and_the_others_go_on(placement, use_reentrant):
    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        x = sw.distribute_tensor(torch.ones(8, 4), mesh, [placement]).requires_grad_()
        masks = []

        def block(y):
            dropped = F.dropout(y, 0.5)
            masks.append(dropped.detach().full_tensor())
            return dropped * y

        torch.manual_seed(4)
        out = checkpoint(block, x, use_reentrant=use_reentrant)
        out.sum().backward()
        assert len(masks) == 2 and torch.equal(*masks) and 0 < masks[0].count_nonzero() < 32
        assert torch.equal(x.grad.full_tensor(), 2 * out.detach().full_tensor())
        after = F.dropout(x.detach(), 0.5).full_tensor()
        torch.manual_seed(4)
        again = [F.dropout(x.detach(), 0.5).full_tensor() for _ in range(2)]
        assert torch.equal(again[0], masks[0]) and torch.equal(again[1], after)
        assert not torch.equal(after, masks[0])
        return masks[0]

    assert all(torch.equal(mask, masks[0]) for masks in [run_ranks(4, on_rank)] for mask in masks)


def test_ranks_seed_save_and_restore_generators_of_their_own():
    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))

        def drawn():
            return sw.rand(6, device_mesh=mesh, placements=[Shard(0)]).full_tensor()

        torch.manual_seed(11)
        first = drawn()
        state = torch.get_rng_state()
        second = drawn()
        torch.set_rng_state(state)
        assert torch.equal(drawn(), second)
        torch.manual_seed(11)  # the same seed again
        assert torch.equal(drawn(), first) and not torch.equal(first, second)
        with torch.random.fork_rng():
            torch.manual_seed(12)
            drawn()
        assert torch.equal(drawn(), second)

    run_ranks(2, on_rank)
    plain = torch.get_rng_state()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.set_rng_state(plain)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), expected) and len(plain) == len(torch.default_generator.get_state())


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_of_micro_batches_add_up(set_to_none):
    def train(model, replicate):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=set_to_none)
            for i in range(4):
                (model(replicate(X + i)).square().mean() / 4).backward()
            optimizer.step()
        return [*model.parameters(), *(parameter.grad for parameter in model.parameters())]

    expect_as_dense(train)


AVERAGES = {
    "mean": {},
    "moving, foreach": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "mean, foreach": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn(), "use_buffers": False},
    "moving, one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
}


@pytest.mark.parametrize("options", AVERAGES.values(), ids=AVERAGES.keys())
def test_averaged_models_follow(options):
    norm = nn.Sequential(nn.Linear(3, 10), nn.BatchNorm1d(10), nn.Linear(10, 2))

    def train(model, replicate):
        average = swa_utils.AveragedModel(model, **{"use_buffers": True, **options})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = swa_utils.SWALR(optimizer, swa_lr=0.005)
        for i in range(3):
            optimizer.zero_grad()
            model(replicate(X + i)).square().sum().backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
        average.load_state_dict(average.state_dict())
        swa_utils.update_bn([replicate(X), replicate(X + 1)], average)
        return [*average.module.parameters(), *average.module.buffers(), average.eval()(replicate(X))]

    expect_as_dense(train, model=norm, layouts={"rows": {"0.weight": Shard(0), "1.weight": Shard(0)}})


def test_functional_calls_take_other_parameters():
    def call(model, replicate):
        doubled = {name: parameter.detach() * 2 for name, parameter in model.named_parameters()}

        def loss(parameters, x):
            return functional_call(model, parameters, (x,)).square().sum()

        whole = grad(loss)(doubled, replicate(X))
        each = vmap(grad(loss), in_dims=(None, 0))(doubled, replicate(X))
        stacked, buffers = stack_module_state([model, copy.deepcopy(model)])
        both = vmap(lambda p, b, x: functional_call(model, (p, b), (x,)), in_dims=(0, 0, None))(
            stacked, buffers, replicate(X)
        )
        return [*whole.values(), *each.values(), both]

    expect_as_dense(call)


@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (0, 1), (0, None), (None, 0)], ids=str)
def test_vmap_of_embedding_with_a_batch_of_tables(dims):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 5, (4, 4), generator=generator)
    tables = torch.randn({0: (4, 5, 3), 1: (5, 4, 3), None: (5, 3)}[dims[1]], generator=generator)

    def look_up(ids, tables):
        tables = tables.detach().requires_grad_()
        rows = vmap(F.embedding, in_dims=dims)(ids, tables)
        rows.sin().sum().backward()
        return [rows, tables.grad]

    expected = look_up(ids, tables)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for of_ids in (Replicate(), Shard(0), Shard(1)):
            for of_tables in (
                Replicate(),
                *(Shard(dim) for dim in range(tables.dim())),
                Shard(0, sizes=[1, 0, len(tables) - 1, 0]),
            ):
                found = look_up(
                    sw.distribute_tensor(ids, mesh, [of_ids]), sw.distribute_tensor(tables, mesh, [of_tables])
                )
                expect_same(found, expected, 1e-5, f"{of_ids}, {of_tables}")
        with pytest.raises((TypeError, ValueError), match="next to a DTensor"):
            vmap(F.embedding, in_dims=dims)(ids, sw.distribute_tensor(tables, mesh, [Replicate()]))

    run_ranks(4, on_rank)


class Symmetric(nn.Module):
    """A user's own."""

    def forward(self, x):
        return x.tanh() + x.mean(0, keepdim=True)

    def right_inverse(self, x):
        return x * 0.5


# What is done to the model, and the parameters that are sharded besides those of LAYOUTS.
PARAMETRIZATIONS = {
    "weight_norm": lambda model: parametrizations.weight_norm(model[0]),
    "weight_norm of columns": lambda model: parametrizations.weight_norm(model[0], dim=1),
    "weight_norm of the whole": lambda model: parametrizations.weight_norm(model[2], dim=None),
    "spectral_norm": lambda model: parametrizations.spectral_norm(model[0], n_power_iterations=2),
    "a user's own": lambda model: parametrize.register_parametrization(model[0], "weight", Symmetric()),
    "two of them": lambda model: [
        parametrize.register_parametrization(model[0], "weight", Symmetric()) for _ in range(2)
    ],
    "orthogonal, exponential": lambda model: parametrizations.orthogonal(model[0], orthogonal_map="matrix_exp"),
    "orthogonal, Cayley": lambda model: parametrizations.orthogonal(model[0], orthogonal_map="cayley"),
    "orthogonal, Householder": lambda model: parametrizations.orthogonal(
        model[0], orthogonal_map="householder", use_trivialization=False
    ),
    "the older weight_norm": lambda model: nn.utils.weight_norm(model[0]),
    "the older spectral_norm": lambda model: nn.utils.spectral_norm(model[0]),
}


def parametrized(name: str, state: dict[str, torch.Tensor] | None = None) -> nn.Module:
    """The model with a parametrization. Each has a class of its own, of which torch removes the parametrized attribute again."""
    model = copy.deepcopy(MLP)
    PARAMETRIZATIONS[name](model)
    if state is not None:
        model.load_state_dict(state)
    return model


def inner_placements(name: str, placements: dict[str, Shard]) -> dict[str, Shard]:
    """Those of the tensors of which the parametrization makes a weight."""
    layer = 2 if "whole" in name else 0
    weight = placements[f"{layer}.weight"]
    return placements | {f"{layer}.parametrizations.weight.original{i}": weight for i in ("", "1")}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrized_models_train(name, when):
    state = parametrized(name).state_dict()
    expected = train_parametrized(parametrized(name, state), lambda x: x.clone())

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for where, placements in LAYOUTS.items():
            if when == "before":
                model = sharded(parametrized(name, state), mesh, inner_placements(name, placements))
            else:
                model = sharded(copy.deepcopy(MLP), mesh, placements)
                PARAMETRIZATIONS[name](model)
                with torch.no_grad():  # vectors of the power iteration are drawn
                    for key, value in model.state_dict().items():
                        value.copy_(replicas_on(mesh)(state[key]))
            expect_same(train_parametrized(model, replicas_on(mesh)), expected, 1e-4, where)

    run_ranks(4, on_rank)


def train_parametrized(model, replicate):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        model(replicate(X)).square().sum().backward()
        optimizer.step()
    result = [model(replicate(X)), model[0].weight, model[2].weight]
    for layer in (model[0], model[2]):
        if parametrize.is_parametrized(layer):
            parametrize.remove_parametrizations(layer, "weight")
    return [*result, model(replicate(X))]


@pytest.mark.parametrize("map_", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("layer", [0, 2], ids=["tall", "wide"])
def test_a_sharded_weight_becomes_orthogonal_and_stays_so(layer, map_):
    """The columns that complete it to a square are drawn, so that only the beginning is that of the dense weight."""
    dense = copy.deepcopy(MLP)
    parametrizations.orthogonal(dense[layer], orthogonal_map=map_)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for placements in LAYOUTS.values():
            model = sharded(copy.deepcopy(MLP), mesh, placements)
            parametrizations.orthogonal(model[layer], orthogonal_map=map_)
            expect_same([model[layer].weight], [dense[layer].weight], 1e-4)
            train_parametrized(model, replicas_on(mesh))
            weight = model[layer].weight.detach().full_tensor()
            gram = weight.mT @ weight if layer == 0 else weight @ weight.mT
            torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=1e-4, atol=1e-4)

    run_ranks(4, on_rank)
