"""Gradients lie as their tensors do, each reduced once; clipping sends one message for all of them."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.experimental import local_map
from shardwise.testing import run_ranks

LAYOUTS = {
    "rows": Shard(0),
    "columns": Shard(1),
    "replicated": Replicate(),
    "uneven": Shard(0, sizes=[1, 0, 4, 0]),
    "pieces": sw.EnumerableShard([Piece((0, 0), (2, 6), 1), Piece((2, 0), (1, 6), 3), Piece((3, 0), (2, 6), 1)]),
}


def distributed(dense, mesh, placement):
    return sw.distribute_tensor(dense, mesh, [placement], src_data_rank=None)


@pytest.mark.parametrize("placement", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("batch", [Shard(0), Replicate(), Shard(1)], ids=["batch", "whole", "features"])
def test_a_gradient_lies_as_its_parameter(placement, batch):
    torch.manual_seed(0)
    weight, x = torch.randn(5, 6), torch.randn(8, 6)
    dense = weight.clone().requires_grad_()
    F.linear(x, dense).sin().sum().backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ours = nn.Parameter(distributed(weight, mesh, placement))
        for _ in range(2):
            F.linear(distributed(x, mesh, batch), ours).sin().sum().backward()
            assert ours.grad.placements == ours.placements
        torch.testing.assert_close(ours.grad.full_tensor(), 2 * dense.grad)

    run_ranks(4, check)


# By the shape of the leaf: programs whose first operator has a kernel of its own. The kernels' gradients lie otherwise than the leaf.
READERS = {
    "embedding": ([9, 4], Replicate(), lambda w, d: F.embedding(d(torch.arange(6) % 9), w)),
    "embedding_bag": ([9, 4], Replicate(), lambda w, d: F.embedding_bag(d(torch.arange(8).view(4, 2)), w)),
    "flip": ([6, 4], Shard(0), lambda w, d: w.flip(0)),
    "cumsum": ([6, 4], Shard(0), lambda w, d: w.cumsum(0)),
    "cumsum beside shards": ([6, 4], Replicate(), lambda w, d: w.cumsum(0) * d(torch.ones(6, 4))),
    "cummax": ([6, 4], Shard(0), lambda w, d: w.cummax(0)[0]),
    "repeat": ([6, 4], Shard(1), lambda w, d: w.repeat(1, 2)),
    "to_local": ([6, 4], Replicate(), lambda w, d: w.to_local(grad_placements=[Partial()])),
}


@pytest.mark.parametrize("shape, placement, program", READERS.values(), ids=READERS.keys())
def test_a_gradient_lies_as_its_leaf_behind_any_first_reader(shape, placement, program):
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        leaf = distributed(torch.linspace(0, 1, math.prod(shape)).view(shape), mesh, placement).requires_grad_()
        for whole in (False, True):  # the gradient of the program's result
            leaf.grad = None
            result = program(leaf, lambda dense: distributed(dense, mesh, Shard(0)))
            ones = torch.ones(result.shape)
            result.backward(
                distributed(ones, mesh, Replicate() if whole else Shard(0)) if isinstance(result, sw.DTensor) else ones
            )
            assert leaf.grad.placements == leaf.placements

    run_ranks(2, check)


@pytest.mark.parametrize("placements", [(Shard(0), Shard(0)), (Replicate(), Shard(1)), (Shard(0), Replicate())])
def test_a_gradient_lies_as_its_parameter_on_a_mesh_of_two_dims(placements):
    torch.manual_seed(0)
    weight, x = torch.randn(5, 6), torch.randn(8, 6)
    dense = weight.clone().requires_grad_()
    F.linear(x, dense).sin().sum().backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        ours = sw.distribute_tensor(weight, mesh, placements, src_data_rank=None).requires_grad_()
        batch = sw.distribute_tensor(x, mesh, [Shard(0), Replicate()], src_data_rank=None)
        F.linear(batch, ours).sin().sum().backward()
        assert ours.grad.placements == placements
        torch.testing.assert_close(ours.grad.full_tensor(), dense.grad)

    run_ranks(4, check)


def test_a_leaf_that_an_operator_gave_has_its_gradient_laid_out_too():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        for leaf in (
            sw.randn(3, 2, device_mesh=mesh, placements=[Shard(0)]) * 0.1,
            sw.ones(2, 3, device_mesh=mesh).t(),
        ):
            leaf = leaf.detach() if leaf.is_leaf is False else leaf
            leaf.requires_grad_()
            (x @ leaf).square().sum().backward()
            assert leaf.grad.placements == leaf.placements

    run_ranks(2, check)


def test_a_sharded_gradient_takes_its_share_of_memory_and_is_reduced_once():
    """The layout of ZeRO-3: parameters and batch sharded over all ranks."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = sw.distribute_module(
            copy.deepcopy(dense),
            mesh,
            lambda name, module, mesh: None if list(module.children()) else shard(module, mesh),
        )
        x = sw.distribute_tensor(torch.ones(8, 64), mesh, [Shard(0)])
        with sw.CommDebugMode() as mode:
            model(x).square().mean().backward()
        held = sum(p.grad.to_local().numel() for p in model.parameters())
        assert held == sum(p.to_local().numel() for p in model.parameters())
        assert mode.bytes_received() <= 4 * 2 * 2 * (64 * 64 + 64) * 3 // 4 * 1.5  # gathered, and its gradient reduced

    def shard(module, mesh):
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(sw.distribute_tensor(parameter.detach(), mesh, [Shard(0)])))

    run_ranks(4, check)


def test_gradients_of_replicated_parameters_share_messages():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        parameters = [sw.ones(3, device_mesh=mesh).requires_grad_() for _ in range(10)]
        x = sw.distribute_tensor(torch.arange(8.0).view(8, 1), mesh, [Shard(0)])
        loss = sum((x * p).sum() for p in parameters)
        with sw.CommDebugMode() as mode:
            loss.backward()
        assert mode.get_total_counts() <= 2
        for p in parameters:
            assert p.grad.placements == (Replicate(),)
            assert p.grad.to_local().tolist() == [28.0] * 3

    run_ranks(4, check)


def test_hooks_of_a_program_see_the_gradient_of_a_sharded_leaf_laid_out():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        weight = sw.ones(4, 3, device_mesh=mesh, placements=[Shard(0)]).requires_grad_()
        seen = []
        weight.register_hook(lambda grad: seen.append(grad.placements))
        F.linear(sw.distribute_tensor(torch.ones(6, 3), mesh, [Shard(0)]), weight).sum().backward()
        assert seen == [(Shard(0),)]

    run_ranks(2, check)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)])
def test_an_optimizer_may_step_within_the_backward(placement):
    torch.manual_seed(0)
    weight, x = torch.randn(4, 6), torch.randn(8, 6)

    def train(weight, x):
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(parameter):
            optimizer.step()
            parameter.grad = None

        weight.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            F.linear(x, weight).sin().sum().backward()
        return weight.detach()

    expected = train(nn.Parameter(weight.clone()), x)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ours = train(nn.Parameter(distributed(weight, mesh, placement)), distributed(x, mesh, Shard(0)))
        torch.testing.assert_close(ours.full_tensor(), expected)

    run_ranks(4, check)


def test_gradients_of_gradients_are_dense():
    torch.manual_seed(0)
    weight, x = torch.randn(4, 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)

    def penalty(weight, x):
        (grad,) = torch.autograd.grad(F.linear(x, weight).sin().sum(), weight, create_graph=True)
        grad.square().sum().backward()

    dense = weight.clone().requires_grad_()
    penalty(dense, x)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ours = distributed(weight, mesh, Shard(0)).requires_grad_()
        penalty(ours, distributed(x, mesh, Shard(0)))
        assert ours.grad.placements == (Shard(0),)
        torch.testing.assert_close(ours.grad.full_tensor(), dense.grad)

    run_ranks(4, check)


@pytest.mark.parametrize("placement", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_micro_batches_are_reduced_once_at_the_end(placement):
    torch.manual_seed(0)
    weight, x = torch.randn(5, 6), torch.randn(3, 8, 6)
    dense = weight.clone().requires_grad_()
    for batch in x:
        F.linear(batch, dense).sin().sum().backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ours = distributed(weight, mesh, placement).requires_grad_()

        def backward():
            for batch in x:
                F.linear(distributed(batch, mesh, Shard(0)), ours).sin().sum().backward()

        with sw.CommDebugMode() as each:
            backward()
        torch.testing.assert_close(ours.grad.full_tensor(), dense.grad)
        ours.grad = None
        with sw.CommDebugMode() as once:
            with sw.accumulate_gradients():
                with sw.accumulate_gradients():
                    backward()
                assert isinstance(ours.grad, sw.DTensor)
            assert ours.grad.placements == ours.placements
        torch.testing.assert_close(ours.grad.full_tensor(), dense.grad)
        assert once.bytes_received() <= each.bytes_received()

    run_ranks(4, check)


def test_a_block_of_micro_batches_that_fails_sends_nothing():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        weight = sw.ones(4, device_mesh=mesh).requires_grad_()
        x = sw.distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
        with pytest.raises(KeyError), sw.accumulate_gradients():
            (x * weight).sum().backward()
            raise KeyError
        assert weight.grad.placements == (Partial(),)
        assert weight.grad.full_tensor().tolist() == [6.0] * 4
        (x * weight).sum().backward()
        assert weight.grad.placements == (Replicate(),)
        assert weight.grad.full_tensor().tolist() == [12.0] * 4

    run_ranks(2, check)


def test_explain_shows_where_gradients_are_laid_out(capsys):
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        weight = sw.ones(4, 4, device_mesh=mesh, placements=[Shard(0)]).requires_grad_()
        bias = sw.ones(4, device_mesh=mesh).requires_grad_()
        x = sw.distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
        records = sw.explain(lambda: F.linear(x, weight, bias).square().sum().backward())
        lines = [record for record in records if record.op == "gradient layout"]
        assert [line.results for line in lines] == [["[Shard(0)]"], ["[Replicate()]"]]
        assert all(line.bytes_received > 0 for line in lines)
        weight.grad = bias.grad = None
        with sw.profile() as recorded:
            F.linear(x, weight, bias).square().sum().backward()
        assert [each.op for each in recorded.operators].count("gradient layout") == 2

    run_ranks(2, check)


def dense_and_ours(dense, mesh, other):
    """Gradients, and the same on two meshes and none."""
    ours = [
        distributed(dense[0], mesh, Shard(0)),
        distributed(dense[1], mesh, Replicate()),
        distributed(dense[2], other, Shard(0, sizes=[3, 0])),
        dense[3].clone(),
        distributed(dense[4], mesh, Shard(0, sizes=[0, 5, 0, 1])),
    ]

    def parameters(grads):
        result = []
        for grad in grads:
            parameter = nn.Parameter(torch.zeros_like(grad))
            parameter.grad = grad.clone()
            result.append(parameter)
        return result

    return parameters(dense), parameters(ours)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.5, math.inf, 0.0])
@pytest.mark.parametrize("foreach", [None, False])
def test_clipping_by_the_norm_of_all_is_dense_and_sends_one_message(norm_type, foreach):
    torch.manual_seed(1)
    values = [torch.randn(5, 6), torch.randn(7), torch.randn(3, 4), torch.randn(2), torch.randn(6)]

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        other = sw.DeviceMesh("cpu", [3, 1])
        dense, ours = dense_and_ours(values, mesh, other)
        expected = nn.utils.clip_grad_norm_(dense, 0.5, norm_type)
        with sw.CommDebugMode() as mode:
            norm = nn.utils.clip_grad_norm_(ours, 0.5, norm_type, foreach=foreach)
        assert mode.get_total_counts() == 1 or norm_type == 0
        torch.testing.assert_close(norm.to_local(), expected)
        for a, b in zip(ours, dense):
            grad = a.grad
            if isinstance(grad, sw.DTensor):
                if grad.device_mesh == other and rank not in (1, 3):
                    continue
                grad = grad.full_tensor()
            torch.testing.assert_close(grad, b.grad)

    run_ranks(4, check)


def test_the_norm_over_slices_of_one_mesh_is_that_of_what_this_rank_sees():
    """Ranks know a slice as differing meshes."""
    torch.manual_seed(0)
    a, b = torch.randn(6), torch.randn(4)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        both = [
            sw.distribute_tensor(a, mesh, [Shard(0), Replicate()], src_data_rank=None),
            sw.distribute_tensor(b, mesh["tp"], [Shard(0)], src_data_rank=None),
        ]
        with sw.CommDebugMode() as mode:
            norm = nn.utils.get_total_norm(both)
        assert mode.get_total_counts() == 1
        torch.testing.assert_close(norm.to_local(), torch.cat([a, b]).norm())
        slices = [
            sw.distribute_tensor(a, mesh["dp"], [Shard(0)], src_data_rank=None),
            sw.distribute_tensor(b, mesh["tp"], [Shard(0)], src_data_rank=None),
        ]
        torch.testing.assert_close(nn.utils.get_total_norm(slices).to_local(), torch.cat([a, b]).norm())
        parameters = [nn.Parameter(torch.zeros_like(grad)) for grad in slices]
        for parameter, grad in zip(parameters, slices):
            parameter.grad = grad
        nn.utils.clip_grad_norm_(parameters, 0.5)
        scale = 0.5 / (torch.cat([a, b]).norm() + 1e-6)
        for parameter, dense in zip(parameters, (a, b)):
            torch.testing.assert_close(parameter.grad.full_tensor(), dense * scale)

    run_ranks(4, check)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_norm_has_the_dtype_of_torchs(dtype):
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        values = torch.full((300,), 20.0, dtype=dtype)
        norm = nn.utils.get_total_norm([distributed(values, mesh, Shard(0))])
        expected = nn.utils.get_total_norm([values])
        assert norm.dtype == expected.dtype
        torch.testing.assert_close(norm.to_local(), expected)

    run_ranks(2, check)


def test_partial_gradients_are_clipped_by_the_norm_of_their_sum():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        parameter = sw.zeros(2, device_mesh=mesh).requires_grad_()
        parameter.grad = sw.DTensor.from_local(torch.tensor([3.0, 4.0]) * (rank + 1), mesh, [Partial()])
        norm = nn.utils.clip_grad_norm_([parameter], 1.5)
        assert norm.item() == 15.0
        torch.testing.assert_close(parameter.grad.full_tensor(), torch.tensor([0.9, 1.2]))

    run_ranks(2, check)


def test_a_norm_that_is_not_finite_is_an_error_on_all_ranks():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        parameter = sw.zeros(2, device_mesh=mesh, placements=[Shard(0)]).requires_grad_()
        parameter.grad = distributed(torch.tensor([1.0, math.nan]), mesh, Shard(0))
        with pytest.raises(RuntimeError, match=r"the total norm of order .* of the gradients is nan"):
            nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)

    run_ranks(2, check)


def reductions(mode):
    return sum(event.collective == "all_reduce" for event in mode.events)


def made_partial(term, mesh):
    """A Partial of memory that the program does not have: an operator made it."""
    return sw.DTensor.from_local(term, mesh, [Partial()]) * 1


def test_each_operator_that_needs_its_value_reduces_a_partial():
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = made_partial(torch.full((3,), rank + 1.0), mesh)
        with sw.CommDebugMode() as mode:
            results = [x.square(), x.exp(), x * x, x.sin()]
            assert x.sum().item() == 9.0
        for result, expected in zip(results, (9.0, math.exp(3.0), 9.0, math.sin(3.0))):
            torch.testing.assert_close(result.full_tensor(), torch.full((3,), expected))
        assert reductions(mode) == 5
        assert x.placements == (Partial(),) and x.to_local().tolist() == [rank + 1.0] * 3

    run_ranks(2, check)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(2),
        lambda x: x.data.mul_(2),
        lambda x: x.detach().mul_(2),
        lambda x: x.view(3, 1).mul_(2),
        lambda x: x[0:3].mul_(2),
        lambda x: torch.mul(x, 2, out=x),
        lambda x: x.copy_(x * 2),
        lambda x: x.mul_(x.detach() * 0 + 2),
        lambda x: x.div_(x.div(x) * 0.5),
        lambda x: torch._foreach_add_([x], [x]),
        lambda x: x.detach().unsqueeze_(0).mul_(2),
        lambda x: local_map(lambda term: term.mul_(2), out_placements=[Partial()])(x),
    ],
    ids=[
        "in place", "data", "detach", "view", "slice", "out", "copy", "by itself", "by its quotient", "foreach", "as a row",
        "local_map",
    ],
)  # fmt: skip
def test_what_was_reduced_is_forgotten_when_a_partial_is_written_to(write, mode):
    def check(rank):
        with mode():
            mesh = sw.init_device_mesh("cpu", (2,))
            x = made_partial(torch.full((3,), rank + 1.0), mesh)
            assert x.square().full_tensor().tolist() == [9.0] * 3
            write(x)
            assert x.square().full_tensor().tolist() == [36.0] * 3
            assert x.sum().item() == 18.0

    run_ranks(2, check)


def times_two_by_numpy(term):
    numbers = term.numpy()
    numbers *= 2


PAST_OPERATORS = {
    "in place": lambda term: term.mul_(2),
    "data": lambda term: term.data.mul_(2),
    "NumPy": times_two_by_numpy,
}


@pytest.mark.parametrize("write", PAST_OPERATORS.values(), ids=PAST_OPERATORS.keys())
@pytest.mark.parametrize("ranks", [(0, 1), (1,)], ids=str)
@pytest.mark.parametrize("of", ["buffer", "to_local", "alias"])
def test_what_from_local_was_given_may_be_written_to_by_any_rank(write, ranks, of):
    """Its values are never kept, so that no rank needs to know what another wrote."""

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        term = torch.full((3,), rank + 1.0)
        x = sw.DTensor.from_local(term, mesh, [Partial()])
        y = x.view(3, 1)
        assert x.square().full_tensor().tolist() == [9.0] * 3
        assert y.square().full_tensor().flatten().tolist() == [9.0] * 3
        if rank in ranks:
            write({"buffer": term, "to_local": x.to_local(), "alias": x.detach().to_local()}[of])
        whole = sum(2.0 * (r + 1) if r in ranks else r + 1 for r in range(2))
        for _ in range(2):
            assert x.square().full_tensor().tolist() == [whole**2] * 3
            assert y.square().full_tensor().flatten().tolist() == [whole**2] * 3

    run_ranks(2, check, timeout=30.0)


@pytest.mark.parametrize("second", [[2, 3], [1, 2]], ids=["disjoint", "overlapping"])
def test_the_norm_over_meshes_that_no_rank_knows_is_an_error(second):
    """Not on ranks of all the meshes, which know it, as all ranks of slices of one mesh do."""

    def body(rank):
        parameters = []
        for ranks in ([0, 1], second):
            mesh = sw.DeviceMesh("cpu", ranks)
            parameter = nn.Parameter(sw.ones(4, device_mesh=mesh, placements=[Shard(0)]))
            parameter.grad = sw.ones(4, device_mesh=mesh, placements=[Shard(0)])
            parameters.append(parameter)
        if rank in second and rank < 2:
            assert nn.utils.get_total_norm([each.grad for each in parameters]).item() == pytest.approx(8**0.5)
        else:
            with pytest.raises(ValueError, match=rf"no mesh has the ranks of all others. Rank {rank} is outside"):
                nn.utils.clip_grad_norm_(parameters, 1.0)
        assert torch.equal(parameters[0].grad.to_local(), torch.ones(2 if rank < 2 else 0))

    run_ranks(4, body, timeout=60)
