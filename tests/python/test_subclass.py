"""DTensor is an honest subclass of torch.Tensor: modules, optimizers, autograd and transforms take it as it is."""

import copy
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import shardwise as sw
from shardwise import DTensor, Replicate, Shard
from shardwise.testing import run_ranks

DENSE = torch.arange(12.0).view(6, 2) / 7


def on_two_ranks(body):
    """Runs `body(tensor)` on two ranks with DENSE sharded by rows."""

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        return body(sw.distribute_tensor(DENSE, mesh, [Shard(0)]))

    return run_ranks(2, on_rank)[0]


def assert_equals(tensor, dense):
    assert type(tensor) is DTensor
    torch.testing.assert_close(tensor.full_tensor(), dense)


# what is done to a tensor, distributed or dense
OPS = {
    "add": lambda x: x + x,
    "scalar": lambda x: 2 - x,
    "view": lambda x: x.view(3, 4).t(),
    "index": lambda x: x[1:4, 0],
    "in-place": lambda x: x.clone().mul_(3),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "in-place on a view": lambda x: (lambda y: (y[1:3].mul_(2), y)[1])(x.clone()),
    "reduction": lambda x: x.sum(0),
    "split": lambda x: x.split(4)[1],
    "linear": lambda x: F.linear(x, x[:3], x[:3, 0]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "sort": lambda x: x.sort(descending=True, dim=0).values,
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "mask": lambda x: x.masked_fill(x > 1, -1),
    "to": lambda x: x.to(torch.float64),
    "cross entropy": lambda x: F.cross_entropy(x, (x[:, 0] > 1).long()),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "zeros_like": torch.zeros_like,
    "new_zeros": lambda x: x.new_zeros(3),
    "foreach": lambda x: torch._foreach_mul([x, x + 1], 2.0)[1],
    "vmap": lambda x: torch.func.vmap(lambda row: row * 2)(x),
    "func.grad": lambda x: torch.func.grad(lambda y: (y * y).sum())(x),
}


@pytest.mark.parametrize("name", OPS)
def test_results_are_dtensors_of_the_dense_values(name):
    on_two_ranks(lambda x: assert_equals(OPS[name](x), OPS[name](DENSE)))


def test_forward_mode_differentiates():
    """On one rank: torch counts the levels of forward differentiation per process, and ranks here are threads."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        x = sw.distribute_tensor(DENSE, mesh, [Shard(0)])
        assert_equals(torch.func.jvp(lambda y: y * y, (x,), (x,))[1], 2 * DENSE * DENSE)

    run_ranks(1, body)


def test_values_leave_as_python_and_numpy():
    def body(x):
        whole = x.redistribute(placements=[Replicate()])
        assert whole.tolist() == DENSE.tolist()
        assert np.array_equal(whole.numpy(), DENSE.numpy()) and np.array_equal(np.asarray(whole), DENSE.numpy())
        for read in (x.tolist, x.numpy, lambda: np.asarray(x)):  # one rank may read alone, so nothing is gathered
            with pytest.raises(ValueError, match=r"does not hold all values .* full_tensor\(\) for all values"):
                read()
        assert x.sum().item() == DENSE.sum().item() and float(x.max()) == float(DENSE.max())
        assert bool((x >= 0).all()) and int(x.argmax()) == 11 and len(x) == 6
        assert f"{x.sum():.3f}" == f"{DENSE.sum():.3f}"
        with pytest.raises(RuntimeError, match="requires grad"):
            whole.requires_grad_().numpy()

    on_two_ranks(body)


def test_numbers_of_a_sum_over_ranks_are_gathered_where_python_asks_for_them():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        part = DTensor.from_local(torch.tensor([1.0 + rank, 2.0]), mesh, [sw.Partial()])
        assert part.sum().item() == 7.0 and float(part[0]) == 3.0 and bool(part[1] == 4)
        uneven = sw.distribute_tensor(DENSE, mesh, [Shard(0, sizes=[0, 6])])
        assert uneven[5, 1].item() == DENSE[5, 1].item()

    run_ranks(2, body)


def test_new_tensors_of_given_values_are_replicas():
    def body(x):
        for made in (x.new_tensor([1, 2]), x.new([1, 2])):
            assert_equals(made, torch.tensor([1.0, 2.0]))
            assert made.placements == (sw.Replicate(),)
        assert x.new_tensor(1.5, dtype=torch.float64, device="cpu", requires_grad=True).item() == 1.5
        assert x.new_tensor(1.5, device="meta").is_meta and type(x.new_tensor(1.5, device="meta")) is torch.Tensor
        assert_equals(x.new_tensor(x, dtype=torch.float64), DENSE.double())
        assert x.new().shape == (0,) and x.new(2, 3).shape == x.new(torch.Size([2, 3])).shape == (2, 3)
        assert type(x.new(2, 3)) is DTensor

    on_two_ranks(body)


def test_repr_shows_this_ranks_part_and_sends_nothing():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        return repr(sw.distribute_tensor(torch.tensor([1, 2, 3]), mesh, [Shard(0)]))

    assert run_ranks(2, body) == [
        "DTensor(local_tensor=tensor([1, 2]), device_mesh=DeviceMesh((tp=2), 'cpu'), placements=(Shard(0),))",
        "DTensor(local_tensor=tensor([3]), device_mesh=DeviceMesh((tp=2), 'cpu'), placements=(Shard(0),))",
    ]


def test_a_dtensor_is_not_constructed_from_values():
    with pytest.raises(TypeError, match=r"Use DTensor.from_local"):
        DTensor(torch.ones(3))


def test_parameters_and_gradients_are_dtensors():
    def body(x):
        parameter = nn.Parameter(x)
        assert type(parameter) is DTensor and isinstance(parameter, nn.Parameter) and parameter.requires_grad
        (parameter * parameter).sum().backward()
        assert_equals(parameter.grad, 2 * DENSE)
        assert parameter.grad.placements == (Shard(0),)
        assert type(parameter.data) is DTensor and type(parameter.detach()) is DTensor

    on_two_ranks(body)


def test_a_plain_tensor_is_refused_as_data_and_as_gradient():
    def body(x):
        parameter = nn.Parameter(x)
        with pytest.raises((TypeError, RuntimeError), match="type"):
            parameter.data = torch.ones(6, 2)
        parameter.grad = torch.ones(6, 2)  # torch compares shape and dtype only: the optimizer refuses it
        with pytest.raises(ValueError, match=r"torch.Tensor of shape \[6, 2\]"):
            torch.optim.SGD([parameter], lr=0.1).step()
        parameter.grad = None
        parameter.data = x + 1
        assert_equals(parameter.detach(), DENSE + 1)

    on_two_ranks(body)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_dense_tensors(name):
    def train(parameter):
        optimizer = OPTIMIZERS[name]([parameter])
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * parameter).sum().backward()
            torch.nn.utils.clip_grad_norm_([parameter], 1.0)
            optimizer.step()
        return parameter

    on_two_ranks(lambda x: assert_equals(train(nn.Parameter(x)).detach(), train(nn.Parameter(DENSE.clone())).detach()))


def test_autocast_lowers_what_it_lowers():
    def body(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.linear(x, x)
            assert type(y) is DTensor and y.dtype == torch.bfloat16
            assert (x + x).dtype == torch.float32
            torch.testing.assert_close(y.full_tensor(), F.linear(DENSE, DENSE))

    on_two_ranks(body)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_recomputes(use_reentrant):
    def body(x):
        x.requires_grad_()
        calls = []

        def block(y):
            calls.append(type(y))
            return torch.relu(y) * y

        checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
        assert calls == [DTensor, DTensor]
        assert_equals(x.grad, 2 * DENSE)

    on_two_ranks(body)


def test_custom_autograd_functions_see_dtensors():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            assert type(x) is DTensor
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert type(x) is DTensor and type(grad) is DTensor
            return grad * 2

    def body(x):
        x.requires_grad_()
        Double.apply(x * 1).sum().backward()
        assert_equals(x.grad, torch.full((6, 2), 2.0))

    on_two_ranks(body)


def test_hooks_see_dtensors():
    def body(x):
        seen = []
        parameter = nn.Parameter(x)
        parameter.register_hook(lambda grad: seen.append(type(grad)))
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(type(p)))
        (y := parameter * 2).retain_grad()
        y.sum().backward()
        assert seen == [DTensor, DTensor] and type(y.grad) is DTensor

    on_two_ranks(body)


def test_double_backward():
    def body(x):
        x.requires_grad_()
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), x)
        assert_equals(second, 6 * DENSE)

    on_two_ranks(body)


def test_modules_convert_deep_copy_and_load():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = sw.distribute_module(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4)), mesh)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            model[0].weight.add_(1)
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin[0].weight.full_tensor(), model[0].weight.full_tensor())
        assert isinstance(twin[0].weight, nn.Parameter) and type(twin[0].weight) is DTensor
        twin.to(torch.bfloat16)
        assert all(type(p) is DTensor and p.dtype == torch.bfloat16 for p in twin.parameters())
        twin.zero_grad()
        x = sw.distribute_tensor(DENSE.to(torch.bfloat16), mesh, [Replicate()])
        twin(x).sum().backward()
        assert all(type(p.grad) is DTensor for p in twin.parameters())

    run_ranks(2, body)


def test_plain_scalars_mix_with_dtensors():
    on_two_ranks(lambda x: assert_equals(x * torch.tensor(2.0) + 1, DENSE * 2 + 1))


def test_implicit_replication_takes_plain_tensors_as_replicated():
    def body(x):
        with sw.implicit_replication():
            assert_equals(x + torch.ones(2), DENSE + 1)
        with pytest.raises(ValueError, match=r"got a torch.Tensor of shape \[2\] next to a DTensor"):
            x + torch.ones(2)

    on_two_ranks(body)


def test_cache_counters_count_hits():
    def body(x):
        x + x
        before = sw.cache_counters()
        x + x
        after = sw.cache_counters()
        assert (after.hits - before.hits, after.misses - before.misses) == (1, 0) and after.size == before.size > 0

    on_two_ranks(body)


def test_inference_mode_views_tensors_from_outside():
    def body(x):
        with torch.inference_mode():
            for view in (lambda y: y.t(), lambda y: y[1:4], lambda y: y.detach(), lambda y: y.view(3, 4)):
                assert_equals(view(x), view(DENSE))
            assert_equals(F.linear(x, x[:3], x[:3, 0]), F.linear(DENSE, DENSE[:3], DENSE[:3, 0]))
        assert not x.t().is_inference()

    on_two_ranks(body)


def test_results_are_ordered_in_memory_as_dense_ones_are():
    """So that a view which dense code takes works here too: torch's MultiheadAttention with batches first."""
    x = torch.arange(24.0).view(2, 3, 4)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    expected = attention(x, x.clone(), x.clone())[0].detach()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for placement in (Replicate(), Shard(0), Shard(2)):
            tensor = sw.distribute_tensor(x, mesh, [placement])
            for turned in (tensor.transpose(0, 1), sw.distribute_tensor(x.transpose(0, 1), mesh, [Replicate()])):
                dense = x.transpose(0, 1)
                assert turned.stride() == dense.stride()
                assert F.layer_norm(turned, (4,)).stride() == F.layer_norm(dense, (4,)).stride()
                assert (turned + 1).stride() == (dense + 1).stride()
                assert F.linear(turned, tensor[0, :, :].new_ones(4, 4)).is_contiguous()
            model = sw.distribute_module(copy.deepcopy(attention), mesh)
            out = model(*(sw.distribute_tensor(x, mesh, [placement]) for _ in range(3)))[0]
            torch.testing.assert_close(out.full_tensor(), expected)

    run_ranks(2, body)


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x.max(0).values,
        lambda x: x.min(1, keepdim=True).values,
        lambda x: x.sort(0, descending=True).values[:2],
        lambda x: x.topk(2, dim=0).values,
        lambda x: x.median(0).values,
    ],
    ids=["max", "min", "sort", "topk", "median"],
)
def test_gradients_of_picked_values_reach_what_was_picked(pick):
    def grad(x):
        x = x.detach().requires_grad_()
        (pick(x) * 3).sum().backward()
        return x.grad

    expected = grad(DENSE)
    on_two_ranks(lambda x: assert_equals(grad(x), expected))


def test_conjugates_are_values():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        dense = torch.complex(DENSE, DENSE + 1)
        x = sw.distribute_tensor(dense, mesh, [Shard(0)])
        assert_equals(x.conj(), dense.conj().resolve_conj())
        assert not x.conj().to_local().is_conj()
        assert_equals(torch.view_as_real(x.conj()), torch.view_as_real(dense.conj().resolve_conj()))

    run_ranks(2, body)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_one_optimizer_updates_parameters_of_several_meshes(options):
    """A table on ranks 0 and 1, one on 3 and 2, and a matrix on all: each rank updates what it holds."""

    def on_rank(rank):
        meshes = [sw.DeviceMesh("cpu", ranks) for ranks in ([0, 1], [3, 2], [0, 1, 2, 3])]
        ours = [nn.Parameter(sw.distribute_tensor(DENSE, mesh, [Shard(0)])) for mesh in meshes]
        theirs = [nn.Parameter(DENSE.clone()) for _ in meshes]
        for parameters in (ours, theirs):
            optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
            for step in range(3):
                for i, parameter in enumerate(parameters):
                    parameter.grad = torch.cos(parameter.detach() * (step + i))
                optimizer.step()
        for found, expected, mesh in zip(ours, theirs, meshes, strict=True):
            whole = found.full_tensor()
            assert mesh.get_coordinate() is None or torch.allclose(whole, expected)

    run_ranks(4, on_rank)


@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_of_several_meshes_are_clipped_by_their_common_norm(foreach):
    def on_rank(rank):
        meshes = [sw.DeviceMesh("cpu", ranks) for ranks in ([0, 1, 2], [3, 2], [0, 1, 2, 3])]
        ours = [nn.Parameter(sw.distribute_tensor(DENSE, mesh, [Shard(0)])) for mesh in meshes]
        theirs = [nn.Parameter(DENSE.clone()) for _ in meshes]
        norms = []
        for parameters in (ours, theirs):
            for parameter in parameters:
                parameter.grad = torch.cos(parameter.detach())
            norms.append(nn.utils.clip_grad_norm_(parameters, 0.5, foreach=foreach))
        assert rank == 3 or torch.allclose(norms[0].full_tensor(), norms[1])
        for found, expected, mesh in zip(ours, theirs, meshes, strict=True):
            whole = found.grad.full_tensor()
            assert mesh.get_coordinate() is None or torch.allclose(whole, expected.grad)

    run_ranks(4, on_rank)


class Counting(DTensor):
    """A class of a program, derived from DTensor, with a dispatch of its own."""

    seen: ClassVar[list[object]] = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_derived_class_has_the_first_word():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        x = sw.distribute_tensor(DENSE, mesh, [Shard(0)])
        mine = Counting(x._local_tensor, x._spec, requires_grad=True)
        assert type(mine) is Counting and mine.is_leaf
        for name, op in OPS.items():
            if name in ("vmap", "func.grad", "out"):  # of these torch makes wrappers, or the result is given
                continue
            Counting.seen.clear()
            result = op(mine)
            assert Counting.seen
            assert_equals(result.detach() if type(result) is DTensor else result, op(DENSE))
        (mine * 2).sum().backward()
        assert_equals(mine.grad, torch.full_like(DENSE, 2))
        with torch.no_grad():
            mine.mul_(2)
        torch.testing.assert_close(mine.full_tensor(), 2 * DENSE)
        torch.testing.assert_close(mine.to_local(), 2 * DENSE)
        assert_equals(mine.redistribute(placements=[Replicate()]).detach(), 2 * DENSE)

    run_ranks(1, body)


def test_a_derived_class_may_refuse_operators():
    class Refusing(DTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    class Plain(DTensor):
        pass

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        x = sw.distribute_tensor(DENSE, mesh, [Shard(0)])
        with pytest.raises(TypeError, match="Refusing"):
            Refusing(x._local_tensor, x._spec) + 1
        plain = Plain(x._local_tensor, x._spec)
        assert type(plain) is Plain
        assert_equals(plain + plain, 2 * DENSE)
        moved = plain.redistribute(placements=[Replicate()])
        assert type(moved) is DTensor

    run_ranks(1, body)
