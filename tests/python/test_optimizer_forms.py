"""torch.optim over parameters of several meshes and plain ones, in all its forms: what the dense step gives."""

import itertools
from importlib import import_module
from inspect import signature

import pytest
import torch
from small_models import (
    KINDS,
    MLP,
    X,
    dense_parameters,
    distributed_parameters,
    expect_as_dense,
    expect_same,
    steps,
)
from torch import nn
from torch.optim import lr_scheduler

import shardwise as sw
from shardwise import Partial, RaggedShard, Replicate, Shard
from shardwise.testing import run_ranks

FOREACH = [{}, {"foreach": False}, {"foreach": True}]
FUSED = [*FOREACH, {"fused": True}]

# optimizer, its forms, options
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, FUSED, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, FUSED, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "SGD, Nesterov": (torch.optim.SGD, FUSED, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adam": (torch.optim.Adam, FUSED, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, FUSED, {"lr": 0.1, "maximize": True}),
    "Adagrad": (torch.optim.Adagrad, FUSED, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
    "NAdam": (torch.optim.NAdam, FOREACH, {"lr": 0.1, "weight_decay": 0.1}),
    "RAdam": (torch.optim.RAdam, FOREACH, {"lr": 0.1, "weight_decay": 0.1}),
    "Adamax": (torch.optim.Adamax, FOREACH, {"lr": 0.1, "weight_decay": 0.1}),
    "Adadelta": (torch.optim.Adadelta, FOREACH, {"lr": 0.1, "weight_decay": 0.1}),
    "RMSprop": (torch.optim.RMSprop, FOREACH, {"lr": 0.1, "momentum": 0.9, "centered": True}),
    "Rprop": (torch.optim.Rprop, FOREACH, {"lr": 0.1}),
    "ASGD": (torch.optim.ASGD, FOREACH, {"lr": 0.1, "weight_decay": 0.1, "t0": 1}),
    "Adafactor": (torch.optim.Adafactor, FOREACH, {"lr": 0.1, "weight_decay": 0.1}),
}


def expect_steps_as_dense(make, kinds=KINDS, tolerance=1e-5):
    """Three steps with the optimizer that `make(parameters)` gives."""
    expected = dense_parameters()
    steps(make(expected))

    def on_rank(rank):
        for kind in kinds:
            found = distributed_parameters(kind)
            steps(make(found))
            expect_same(found, expected, tolerance, kind)

    run_ranks(4, on_rank)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_form_steps_over_several_meshes_and_plain_parameters(name):
    optimizer, forms, options = OPTIMIZERS[name]
    for form in forms:
        expect_steps_as_dense(lambda parameters, form=form: optimizer(parameters, **options, **form))


def test_steps_send_nothing_where_gradients_are_laid_out_as_their_parameters():
    def on_rank(rank):
        for optimizer, forms, options in OPTIMIZERS.values():
            for form in forms if optimizer is not torch.optim.Adafactor else []:
                made = optimizer(distributed_parameters("one mesh"), **options, **form)
                with sw.communication_policy("error"):
                    steps(made)

    run_ranks(4, on_rank)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["0-dim", "one element"])
@pytest.mark.parametrize("name", ["SGD", "SGD with momentum", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_a_learning_rate_may_be_a_tensor(name, shape):
    optimizer, forms, options = OPTIMIZERS[name]
    for form in forms:
        if form == {"foreach": True} and optimizer in (torch.optim.Adam, torch.optim.AdamW):
            continue  # torch refuses it
        rate = torch.full(shape, 0.1)
        expect_steps_as_dense(
            lambda parameters, form=form, rate=rate: optimizer(parameters, **{**options, "lr": rate.clone()}, **form),
            kinds=["mixed"],
        )


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "AdamW", "Adagrad"])
def test_gradients_may_be_partial_or_laid_out_in_another_way(name):
    optimizer, forms, options = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator)

    def train(parameter, given, form):
        made = optimizer([parameter], **options, **form)
        for _ in range(2):
            parameter.grad = given.clone()
            made.step()
        return [parameter]

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for form in forms:
            expected = train(nn.Parameter(weight.clone()), grad, form)
            for placement in (Shard(0), Replicate(), Shard(0, sizes=[0, 6, 0, 0])):
                for of_grad in (Partial(), Shard(1), Shard(0), Replicate()):
                    parameter = nn.Parameter(sw.distribute_tensor(weight, mesh, [placement]))
                    given = sw.distribute_tensor(grad, mesh, [of_grad])
                    expect_same(train(parameter, given, form), expected, 1e-5, f"{form}, {placement}, {of_grad}")

    run_ranks(4, on_rank)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Adafactor"])
def test_steps_on_pieces_ask_no_operator_and_count_as_writes(name):
    optimizer, forms, options = OPTIMIZERS[name]
    values = torch.arange(24.0).view(6, 4)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        for form, layout in itertools.product(forms, (Shard(0), Shard(1, sizes=[0, 3, 1]), Replicate())):
            note = f"{form}, {layout}"
            whole = nn.Parameter(values.clone())
            ours = nn.Parameter(sw.distribute_tensor(values, mesh, [layout]))
            whole.grad = values.cos()
            ours.grad = sw.distribute_tensor(whole.grad, mesh, [layout])
            expected, made = (optimizer([each], **options, **form) for each in (whole, ours))
            row = ours.detach()[4]  # its values are sent to two ranks
            for turn in range(4):
                expected.step()
                before, version, version_of_grad = sw.cache_counters(), ours._version, ours.grad._version
                made.step()
                after = sw.cache_counters()
                assert turn < 2 or (after.hits, after.misses) == (before.hits, before.misses), note
                assert ours._version > version and ours.grad._version == version_of_grad, note
                torch.testing.assert_close(ours.full_tensor(), whole.detach(), msg=note)
                torch.testing.assert_close(row.full_tensor(), whole[4].detach(), msg=note)

    run_ranks(3, on_rank)


def test_a_reader_of_operators_sees_those_of_a_step():
    class Reader(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            seen.extend(type(each) for each in args)
            return op(*args, **(kwargs or {}))

    def on_rank(rank):
        parameter = nn.Parameter(sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (1,)), placements=[Shard(0)]))
        parameter.grad = parameter.detach().clone()
        made = torch.optim.SGD([parameter], lr=0.1, foreach=False)
        for _ in range(3):
            with Reader():
                made.step()
            assert nn.Parameter in seen or sw.DTensor in seen
            seen.clear()

    seen: list[type] = []
    run_ranks(1, on_rank)


def test_lists_over_meshes_answer_in_their_order():
    def on_rank(rank):
        ours, dense = distributed_parameters("mixed"), dense_parameters()
        with torch.no_grad():
            made = torch._foreach_mul(ours, [float(i) for i in range(len(ours))])
            expect_same(made, [x.detach() * i for i, x in enumerate(dense)])
            assert [type(x) for x in made] == [type(x.detach()) for x in ours]
            versions = [x._version for x in ours]
            torch._foreach_add_(ours, made, alpha=2)
            expect_same(ours, [x.detach() * (1 + 2 * i) for i, x in enumerate(dense)])
            assert all(x._version > before for x, before in zip(ours, versions, strict=True))
            half = sw.distribute_tensor(torch.tensor(0.5), ours[0].device_mesh, [Replicate()])
            torch._foreach_mul_(ours, half)
            expect_same(ours, [x.detach() * (1 + 2 * i) / 2 for i, x in enumerate(dense)])

    run_ranks(4, on_rank)


def test_a_plain_member_beside_a_distributed_one_is_an_error():
    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ours = [sw.zeros(4, device_mesh=mesh, placements=[Shard(0)]), torch.zeros(4)]
        with pytest.raises(
            ValueError, match=r"_foreach_add_.List\] got a torch.Tensor of shape \[4\] next to a DTensor"
        ):
            torch._foreach_add_(ours, [torch.ones(4), torch.ones(4)])

    run_ranks(2, on_rank)


def test_torch_takes_dtensors_for_tensors_where_it_chooses_the_form():
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for module in (optimizer, _foreach_utils):
        assert sw.DTensor in module._foreach_supported_types

    def on_rank(rank):
        p = nn.Parameter(sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)]))
        assert _foreach_utils._has_foreach_support([p], p.device)
        assert optimizer._default_to_fused_or_foreach([p], False) == optimizer._default_to_fused_or_foreach(
            [torch.ones(4)], False
        )

    run_ranks(2, on_rank)


MATRICES = [(6, 4), (5, 3), (4, 6), (3, 3), (2, 2), (8, 3), (4, 4)]


@pytest.mark.parametrize("options", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}], ids=str)
def test_muon_gives_each_matrix_to_one_rank(options):
    def train(parameters):
        steps(torch.optim.Muon(parameters, lr=0.1, **options))
        return parameters

    expected = train(dense_parameters(MATRICES))

    def on_rank(rank):
        for kind, n_exchanges in (("one mesh", 2), ("two meshes", 4), ("mixed", 6)):
            found = distributed_parameters(kind, MATRICES)
            expect_same(train(found), expected, 1e-2, kind)
            for parameter in found:
                parameter.grad = parameter.detach().clone()
            optimizer = torch.optim.Muon(found, lr=0.1, **options)
            with sw.CommDebugMode() as comm:
                optimizer.step()
            assert comm.get_total_counts() <= n_exchanges, (kind, comm.get_comm_counts())

    run_ranks(4, on_rank)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("kind", KINDS)
def test_lbfgs_searches_as_on_dense_tensors(kind, search):
    def train(parameters):
        optimizer = torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn=search)

        def closure():
            optimizer.zero_grad()
            total = 0.0
            for i, parameter in enumerate(parameters):
                ((parameter - i) ** 4).sum().backward()
                total += float(((whole(parameter) - i) ** 4).sum())
            return torch.tensor(total)

        for _ in range(2):
            optimizer.step(closure)
        return parameters

    def whole(parameter):
        if not isinstance(parameter, sw.DTensor):
            return parameter.detach()
        line = sw.init_device_mesh("cpu", (4,))  # ranks outside the parameter's mesh need the loss, too
        return parameter.detach().redistribute(line, [Replicate()]).to_local()

    expected = train(dense_parameters())

    def on_rank(rank):
        expect_same(train(distributed_parameters(kind)), expected, 1e-4)

    run_ranks(4, on_rank)


@pytest.mark.skipif("maximize" not in signature(torch.optim.LBFGS).parameters, reason="new in torch 2.14")
@pytest.mark.parametrize("kind", KINDS)
def test_lbfgs_climbs_as_on_dense_tensors(kind):
    def train(parameters):
        optimizer = torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, maximize=True)

        def closure():
            optimizer.zero_grad()
            for i, parameter in enumerate(parameters):
                (-((parameter - i) ** 2)).sum().backward()
            return torch.tensor(0.0)

        optimizer.step(closure)
        return parameters

    expected = train(dense_parameters())
    run_ranks(4, lambda rank: expect_same(train(distributed_parameters(kind)), expected, 1e-4))


SCHEDULES = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 5)], [2]
    ),
}


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_schedules_change_the_rate(schedule, rate):
    def train(model, replicate):
        lr = rate.clone() if isinstance(rate, torch.Tensor) else rate
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True)
        scheduler = schedule(optimizer)
        rates = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(replicate(X)).square().sum()
            loss.backward()
            optimizer.step()
            scheduler.step(*[loss] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else [])
            rates.append(float(optimizer.param_groups[0]["lr"]))
        return [*model.parameters(), *rates]

    expect_as_dense(train)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_dicts_go_on_where_they_were(name):
    make, _, options = OPTIMIZERS[name]

    def train(model, replicate):
        optimizer = make(model.parameters(), **options)
        for _ in range(2):
            optimizer.zero_grad()
            model(replicate(X)).square().sum().backward()
            optimizer.step()
            saved, optimizer = optimizer.state_dict(), make(model.parameters(), **options)
            optimizer.load_state_dict(saved)
        return list(model.parameters())

    expect_as_dense(train, model=MLP)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate(), Shard(0, sizes=[0, 1])], ids=str)
def test_lists_whose_first_tensors_are_broadcast(placement):
    """Results are larger than the tensors of the first list, whose layout they otherwise take."""
    a, b = torch.full((1, 4), 2.0), torch.arange(8.0).view(2, 4)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(a, mesh, [placement])
        for wide in (Shard(0), Shard(1), Replicate(), Partial()):
            y = sw.distribute_tensor(b, mesh, [wide])
            (product,) = torch._foreach_mul([x], [y])
            assert product.shape == b.shape and torch.equal(product.full_tensor(), a * b)
            with pytest.raises(RuntimeError, match=r"shape|broadcast"):
                torch._foreach_mul_([x], [y])
        assert torch.equal(x.full_tensor(), a)

    run_ranks(2, on_rank)


@pytest.mark.parametrize("name", ["SGD", "Adam", "ASGD", "RMSprop"])
def test_complex_ranges_step_by_operators_on_all_ranks(name):
    """Their views as real numbers send: a rank must not step on its only piece while the others, which have none or two, call operators."""
    optimizer, _, options = OPTIMIZERS[name]
    values = torch.complex(torch.arange(12.0), torch.ones(12)).view(4, 3)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        whole = nn.Parameter(values.clone())
        ours = nn.Parameter(sw.distribute_tensor(values, mesh, [RaggedShard((0, 1), (1, 0, 2, 1))]))
        expected, made = (optimizer([each], **options, foreach=False) for each in (whole, ours))
        for _ in range(3):
            whole.grad = values.cos()
            ours.grad = sw.distribute_tensor(whole.grad, mesh, ours.placements)
            expected.step()
            made.step()
            torch.testing.assert_close(ours.full_tensor().detach(), whole.detach())

    run_ranks(4, on_rank)


def test_a_function_of_torch_takes_its_lists_by_name():
    sgd = import_module("torch.optim.sgd")
    values = torch.arange(6.0)
    options = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for n_places in range(4):
            lists = {name: [sw.distribute_tensor(values, mesh, [Shard(0)])] for name in ("params", "d_p_list")}
            lists["momentum_buffer_list"] = []
            by_place = [lists.pop(name) for name in list(lists)[:n_places]]
            parameter = by_place[0][0] if by_place else lists["params"][0]
            sgd.sgd(*by_place, **lists, **options, foreach=False)
            torch.testing.assert_close(parameter.full_tensor(), values * 0.9)

    run_ranks(2, on_rank)
