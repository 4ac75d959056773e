"""fully_shard of parameters whose class says itself what ranks send: fsdp_pre_all_gather and fsdp_post_all_gather."""

import copy
import re

import pytest
import torch
from extension_classes import (
    Carried,
    Codes,
    Layers,
    Padded,
    PlainLinear,
    Quantised,
    Rounded,
    Stack,
    X,
    filled,
    of_class,
    plain_of,
    plain_values,
    train,
)
from torch import nn
from torch.utils._pytree import tree_map_only
from torchrun import forked_ranks

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.fsdp import MixedPrecisionPolicy, fully_shard
from shardwise.testing import run_ranks


def expect_same(model, dense, mesh, **tolerance):
    """Parameters, and gradients, which are plain."""
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-5}
    for (name, own), (_, expected) in zip(model.named_parameters(), dense.named_parameters(), strict=True):

        def part(whole, own=own):
            return sw.distribute_tensor(whole.detach(), mesh, own.placements, src_data_rank=None).to_local()

        torch.testing.assert_close(
            plain_values(own.to_local().detach()),
            part(expected),
            msg=lambda t, n=name: f"{n}: {t}",
            **tolerance,
        )
        assert (own.grad is None) == (expected.grad is None), name
        if expected.grad is not None:
            assert type(own.grad.to_local()) is torch.Tensor
            torch.testing.assert_close(
                own.grad.to_local(), part(expected.grad), msg=lambda t, n=name: f"{n}.grad: {t}", **tolerance
            )


def shard_stack(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@pytest.mark.parametrize("cls", [Rounded, Padded, Quantised])
@pytest.mark.parametrize(("n_ranks", "reshard"), [(1, None), (2, True), (3, True), (3, False), (4, 2)])
@pytest.mark.parametrize("rows", [12, 10])
def test_training_is_that_of_the_plain_module(cls, n_ranks, reshard, rows):
    dense = Stack(plain_of(cls), rows)
    losses = train(dense)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        model = shard_stack(Stack(of_class(cls), rows), mesh, reshard_after_forward=reshard)
        assert type(model.blocks[0].first.weight.to_local()) is cls
        own = train(model, lambda x: x.chunk(n_ranks)[rank])
        expect_same(model, dense, mesh)
        return own

    of_ranks = torch.tensor(run_ranks(n_ranks, body, timeout=60))
    torch.testing.assert_close(of_ranks.mean(0), torch.tensor(losses), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_other_optimizers(optimizer):
    dense = Layers(plain_of(Rounded))
    train(dense, optimizer=optimizer)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        model = fully_shard(Layers(of_class(Rounded)), mesh=mesh)
        train(model, lambda x: x.chunk(3)[rank], optimizer=optimizer)
        expect_same(model, dense, mesh)

    run_ranks(3, body)


class Sticky(Carried):
    """Results of its operators are of the class, and so are gradients."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner, kwargs = tree_map_only(Carried, lambda each: each.values_, (args, kwargs or {}))
        result = func(*inner, **kwargs)
        return args[0] if func._schema.is_mutable else tree_map_only(torch.Tensor, cls, result)

    def fsdp_pre_all_gather(self, mesh):
        return (self.values_,), None

    def fsdp_post_all_gather(self, gathered, metadata, param_dtype, *, out=None):
        return None if out is not None else (Sticky(gathered[0]), gathered)


def test_gradients_of_a_class_become_plain():
    dense = filled(nn.Linear(6, 5))
    dense(X[0]).square().mean().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(of_class(Sticky)(6, 5), mesh=mesh)
        loss = model(X[0].chunk(2)[rank]).square().mean()
        assert isinstance(loss, Sticky)
        loss.backward()
        expect_same(model, dense, mesh)

    run_ranks(2, body)


def test_replicas():
    dense = Layers(plain_of(Quantised))
    train(dense)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        model = fully_shard(Layers(of_class(Quantised)), mesh=mesh)
        train(model, lambda x: x.chunk(4)[rank])
        expect_same(model, dense, mesh)

    run_ranks(4, body)


def test_columns():
    dense = Layers(plain_of(Rounded), 9)
    train(dense)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        along = lambda parameter: Shard(1) if parameter.dim() > 1 else None  # noqa: E731
        model = fully_shard(Layers(of_class(Rounded), 9), mesh=mesh, shard_placement_fn=along)
        assert model.frozen.weight.to_local().shape == (4, 5 - rank)
        train(model, lambda x: x.chunk(2)[rank])
        expect_same(model, dense, mesh)

    run_ranks(2, body)


def test_beside_tensor_parallelism():
    """The local tensor of the parameter's DTensor is of the class; modules compute with a DTensor of what it makes."""
    torch.manual_seed(5)
    dense = PlainLinear(Rounded, 6, 8, bias=False)
    x = X[0]
    dense(x).square().mean().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        tp, dp = mesh["tp"].get_local_rank(), mesh["dp"].get_local_rank()
        model = nn.Linear(6, 8, bias=False)
        own = Rounded(dense.weight.detach().chunk(2)[tp].clone())
        model.weight = nn.Parameter(sw.DTensor.from_local(own, mesh["tp"], [Shard(0)]))
        fully_shard(model, mesh=mesh["dp"])
        assert type(model.weight.to_local()) is Rounded and model.weight.to_local().shape == (2, 6)
        for _ in range(2):
            model.zero_grad()
            given = sw.distribute_tensor(x.chunk(2)[dp], mesh["tp"], [Replicate()])
            (model(given).square().mean()).full_tensor().backward()
            expected = dense.weight.grad.chunk(2)[tp].chunk(2)[dp]
            torch.testing.assert_close(model.weight.grad.to_local(), expected)

    run_ranks(4, body)


def test_what_the_hooks_get():
    class Watched(Rounded):
        calls: list = []  # noqa: RUF012

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        policy = MixedPrecisionPolicy(param_dtype=torch.float64)
        layer = of_class(Watched)(6, 5)
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        own = layer.weight.detach().to_local()
        for _ in range(2):
            layer(X[0].double()).sum().backward()
        expected = ("pre", mesh, torch.Size([5, 6]), (6, 1), layer, policy)
        pres = [call for call in Watched.calls if call[0] == "pre" and call[-1] is own]
        assert len(pres) == 4 and all(call[:-1] == expected for call in pres)

    run_ranks(2, body)
    posts = [call for call in Watched.calls if call[0] == "post"]
    assert all(call[1:4] == ((5, 6), torch.bfloat16, torch.float64) for call in posts)
    assert len(posts) == 8 and sum(call[4] is None for call in posts) == 2


@pytest.mark.parametrize("cls", [Rounded, Quantised])
def test_memory_is_freed_and_comes_back(cls):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(of_class(cls)(6, 5), mesh=mesh)
        for _ in range(2):
            model.unshard()
            whole = model.weight
            assert isinstance(whole, nn.Parameter) and isinstance(whole, Codes) == (cls is Quantised)
            assert model(X[0]).isfinite().all()
            model.unshard()
            model.reshard()
            assert type(model.weight.to_local()) is cls
            with pytest.raises(RuntimeError, match="a whole parameter is read while it is not gathered"):
                whole.sum()
        model.unshard()
        assert model.weight is whole and whole.sum().isfinite()

    run_ranks(2, body)


@pytest.mark.parametrize("cls", [Rounded, Quantised])
def test_nothing_more_is_sent(cls):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        counts = []
        for make in (of_class(cls), nn.Linear):
            model = shard_stack(Stack(make), mesh)
            for _ in range(2):
                with sw.CommDebugMode() as comm:
                    model(X[0]).sum().backward()
            counts.append(dict(comm.get_comm_counts()))
        assert counts[0] == counts[1] == {"all_gather": 3, "reduce_scatter": 3}, counts

    run_ranks(3, body)


def test_bytes_are_those_of_the_tensors_that_the_class_gives():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(of_class(Rounded)(6, 8, bias=False), mesh=mesh)
        model.unshard()
        model.reshard()
        with sw.CommDebugMode() as comm:
            model.unshard()
        assert comm.bytes_received() == 4 * 6 * 2

    run_ranks(2, body)


def test_states_are_loaded_and_saved():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(Layers(of_class(Quantised)), mesh=mesh)
        other = fully_shard(Layers(of_class(Quantised)), mesh=mesh)
        train(model, lambda x: x.chunk(2)[rank])
        x = X[1]
        expected = model(x)
        for assign in (False, True):
            other(x)
            state = copy.deepcopy(model.state_dict())
            assert type(state["first.weight"].to_local()) is Quantised
            other.load_state_dict(state, assign=assign)
            torch.testing.assert_close(other(x), expected)
            other.unshard()
            assert type(other.state_dict()["first.weight"].to_local()) is Quantised
            other.reshard()

    run_ranks(2, body)


def test_accumulated_and_frozen_later():
    dense = Layers(plain_of(Rounded))
    for x in X[:2]:
        dense(x).square().mean().backward()
    dense.first.weight.requires_grad_(False)
    dense(X[2]).square().mean().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(Layers(of_class(Rounded)), mesh=mesh)
        model.set_requires_gradient_sync(False)
        model(X[0].chunk(2)[rank]).square().mean().backward()
        model.set_requires_gradient_sync(True)
        model(X[1].chunk(2)[rank]).square().mean().backward()
        model.first.weight.requires_grad_(False)
        model(X[2].chunk(2)[rank]).square().mean().backward()
        expect_same(model, dense, mesh)

    run_ranks(2, body)


def test_first_gathered_without_gradients():
    dense = Layers(plain_of(Quantised))
    train(dense)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(Layers(of_class(Quantised)), mesh=mesh)
        with torch.inference_mode():
            assert model(X[0]).isfinite().all()
        train(model, lambda x: x.chunk(2)[rank])
        expect_same(model, dense, mesh)

    run_ranks(2, body)


def test_mixed_precision():
    dense = Layers(plain_of(Rounded))
    train(dense, n_steps=1)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = fully_shard(Layers(of_class(Rounded)), mesh=mesh, mp_policy=policy)
        model.unshard()
        assert model.first.weight.dtype == model.first.bias.dtype == torch.bfloat16
        model.reshard()
        train(model, lambda x: x.chunk(2)[rank], n_steps=1)
        assert model.first.weight.grad.dtype == torch.float32
        for (name, own), (_, expected) in zip(model.named_parameters(), dense.named_parameters(), strict=True):
            if expected.grad is not None:
                torch.testing.assert_close(
                    own.grad.full_tensor(), expected.grad, rtol=0.1, atol=0.01, msg=lambda t, n=name: f"{n}: {t}"
                )

    run_ranks(2, body)


def test_meta_device():
    dense = Layers(plain_of(Rounded))
    train(dense)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        with torch.device("meta"):
            model = Layers(of_class(Rounded))
        fully_shard(model, mesh=mesh)
        assert type(model.first.weight.to_local()) is Rounded and model.first.weight.is_meta
        model.to_empty(device="cpu")
        with torch.no_grad():
            for own, given in zip(model.parameters(), Layers(plain_of(Rounded)).parameters(), strict=True):
                part = sw.distribute_tensor(given.detach(), mesh, own.placements, src_data_rank=None)
                plain_values(own.to_local().detach()).copy_(part.to_local())
        assert type(model.first.weight.to_local()) is Rounded
        train(model, lambda x: x.chunk(3)[rank])
        expect_same(model, dense, mesh)

    run_ranks(3, body)


# Errors


def expect_error(cls, error, words, *, of_rank=lambda rank: True, other=None):
    """On all ranks, before anything is sent."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = of_class(cls if of_rank(rank) else Rounded)(6, 5)
        with pytest.raises(error if of_rank(rank) or other is None else other, match=words):
            fully_shard(model, mesh=mesh)
            model.unshard()

    run_ranks(2, body, timeout=20)


def hooks(pre, post=lambda self, gathered, metadata, param_dtype, *, out=None: (gathered[0].float(), gathered)):
    return type("Odd", (Carried,), {"fsdp_pre_all_gather": pre, "fsdp_post_all_gather": post})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda self: (self.values_,), "returns tuple of Tensor. Return a tuple of plain tensors, and metadata"),
        (lambda self: (self.values_, None), "returns (Tensor, metadata)"),
        (lambda self: ((3,), None), "returns int among its tensors"),
        (lambda self: ((self,), None), "returns a tensor of class Odd, whose memory cannot be sent"),
        (lambda self: ((self.values_.to_sparse(),), None), "returns a tensor of layout Sparse"),
    ],
)
def test_hooks_that_give_no_tensors(given, words):
    for of_rank in (lambda rank: True, lambda rank: rank == 1):
        expect_error(
            hooks(lambda self, mesh: given(self)),
            TypeError,
            rf"\[fully_shard\] weight, a Odd: .*{re.escape(words)}",
            of_rank=of_rank,
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            lambda self: ((self.values_.bfloat16(),) * 2, None),
            "BFloat16 [3, 6] on rank 0, and BFloat16 [2, 6], BFloat16 [2, 6]",
        ),
        (lambda self: ((), None), "and no tensor on rank 1"),
        (
            lambda self: ((self.values_.half(),), None),
            "Half [2, 6] on rank 1. Return the same number of tensors on all ranks",
        ),
        (lambda self: ((self.values_[:, :3].bfloat16(),), None), "BFloat16 [2, 3] on rank 1"),
    ],
)
def test_ranks_whose_hooks_give_others(given, words):
    expect_error(hooks(lambda self, mesh: given(self)), ValueError, re.escape(words), of_rank=lambda rank: rank == 1)


def test_hooks_that_fail_or_change():
    def failing(self, mesh):
        raise KeyError("no scale")

    for of_rank in (lambda rank: True, lambda rank: rank == 1):
        expect_error(hooks(failing), KeyError, "no scale", of_rank=of_rank, other=(RuntimeError, KeyError))


def test_a_hook_that_changes_its_mind():
    calls = []

    def changing(self, mesh):
        calls.append(self)
        return (self.values_[: sum(each is self for each in calls)],), None

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        cls = hooks(changing, lambda self, gathered, *rest, out=None: (torch.zeros(5, 6), ()))
        model = fully_shard(of_class(cls)(6, 5), mesh=mesh)
        model.unshard()
        model.reshard()
        words = "fsdp_pre_all_gather returns Float [2, 6] now, but returned Float [1, 6] before the first gather"
        with pytest.raises(ValueError, match=re.escape(words)):
            model.unshard()

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            lambda gathered: (gathered[0][:4], ()),
            ValueError,
            "returns a tensor of shape [4, 6] for a parameter of shape [5, 6]",
        ),
        (lambda gathered: gathered[0], TypeError, "fsdp_post_all_gather returns Tensor. Return the whole tensor"),
        (lambda gathered: None, TypeError, "fsdp_post_all_gather returns NoneType"),
    ],
)
def test_what_is_made_of_them(given, error, words):
    cls = hooks(
        lambda self, mesh: ((self.values_,), None),
        lambda self, gathered, metadata, param_dtype, *, out=None: given(gathered),
    )
    expect_error(cls, error, re.escape(words))


def test_classes_without_hooks():
    half = type("Half", (Carried,), {"fsdp_pre_all_gather": Rounded.fsdp_pre_all_gather})
    three = hooks(lambda self, mesh, module, policy: None)
    undispatched = type("Tagged", (torch.Tensor,), {"fsdp_pre_all_gather": Rounded.fsdp_pre_all_gather})
    for cls, words in (
        (
            Carried,
            "weight is a Carried, whose memory only its own operators read, and has neither fsdp_pre_all_gather nor",
        ),
        (half, "and has no fsdp_post_all_gather. Give the class both, or leave the parameter out"),
        (three, "weight is a Odd whose fsdp_pre_all_gather takes (mesh, module, policy)"),
        (
            lambda values: values.as_subclass(undispatched),
            "weight is a Tagged with fsdp_pre_all_gather but without a __torch",
        ),
    ):
        expect_error(cls, TypeError, re.escape(words))


# torch's own, and torchao's


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_the_same_as_torchs_own(n_ranks):
    ended = forked_ranks("fsdp_extensions_program.py", n_ranks)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "the same" in ended.stdout


def test_float8_weights_of_torchao():
    utils = pytest.importorskip("torchao.float8.fsdp_utils")
    from torchao.float8 import Float8LinearConfig, ScalingType, convert_to_float8_training
    from torchao.float8.config import CastConfig

    def model():
        torch.manual_seed(5)
        cast = CastConfig(scaling_type=ScalingType.DYNAMIC)
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True, cast_config_weight=cast)
        layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        return convert_to_float8_training(layers, config=config)

    x = torch.rand(3, 32, 16, generator=torch.Generator().manual_seed(3))

    def trained(layers, part):
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        for each in x:
            layers(part(each)).square().mean().backward()
            optimizer.step()
            if part(each) is not each:
                utils.precompute_float8_dynamic_scale_for_fsdp(layers)
            optimizer.zero_grad()
        return layers

    dense = trained(model(), lambda x: x)
    models = [model() for _ in range(2)]  # the ranks share the default generator

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        layers = fully_shard(models[rank], mesh=mesh)
        assert isinstance(layers[0].weight.to_local(), utils.WeightWithDynamicFloat8CastTensor)
        trained(layers, lambda x: x.chunk(2)[rank])
        for own, expected in zip(layers.parameters(), dense.parameters(), strict=True):
            local = own.to_local().detach()
            local = getattr(local, "_tensor", local)
            part = getattr(expected, "_tensor", expected).detach().chunk(2)[rank]
            torch.testing.assert_close(local, part, rtol=0.05, atol=0.02)

    run_ranks(2, body)
