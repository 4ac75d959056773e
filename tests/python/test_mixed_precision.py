"""Autocast and GradScaler: the dtypes, the values and the scale of the dense run, on all ranks alike."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small_models import (
    LAYOUTS,
    MLP,
    X,
    dense_parameters,
    distributed_parameters,
    expect_as_dense,
    expect_same,
    replicas_on,
    sharded,
)
from torch import nn

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.testing import run_ranks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_trains_in_the_dtypes_of_tensors(dtype):
    def train(model, replicate):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                y = model(replicate(X))
                loss = F.mse_loss(y, torch.ones_like(y)) + torch.softmax(y, -1).square().sum()
            loss.backward()
            optimizer.step()
        return [*model.parameters(), *(p.grad for p in model.parameters()), str(y.dtype), str(loss.dtype)]

    expect_as_dense(train, tolerance=3e-2)


CALLS = {
    "addmm": lambda x, w: torch.addmm(w, x, w),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]),
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "cat of two dtypes": lambda x, w: torch.cat([x.bfloat16(), w]),
    "layer norm of a product": lambda x, w: F.layer_norm(x @ w, (8,)),
    "cross entropy": lambda x, w: F.cross_entropy(x @ w, (x[:, 0] > 0).long()),
    "logits": lambda x, w: F.binary_cross_entropy_with_logits(x @ w, torch.zeros_like(x)),
    "sum": lambda x, w: (x @ w).sum(),
    "convolution": lambda x, w: F.conv1d(x[None], w[:, :, None]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_autocast_lowers_what_it_lowers_of_tensors(call):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = call(x, w)
            for a, b in ((Shard(0), Shard(1)), (Shard(1), Shard(0, sizes=[3, 0, 4, 1])), (Replicate(), Replicate())):
                found = call(sw.distribute_tensor(x, mesh, [a]), sw.distribute_tensor(w, mesh, [b]))
                assert found.dtype == expected.dtype
                torch.testing.assert_close(found.full_tensor(), expected, rtol=3e-2, atol=1e-1)

    run_ranks(4, on_rank)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.01, fused=True),
}


@pytest.mark.parametrize("unscales", [False, True], ids=["step", "unscale_, step"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_step_with_an_infinite_gradient_on_one_rank_is_skipped_on_all(make, unscales):
    def train(model, replicate):
        optimizer = make(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
        scales = []
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(model(replicate(X)).square().sum()).backward()
            if step == 1:
                spoil(model[0].weight.grad)
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [2048.0, 1024.0, 2048.0, 4096.0]
        return [*model.parameters(), *scales]

    def spoil(grad):
        """Element (4, 0), which one rank holds, or all."""
        row = grad
        if isinstance(grad, DTensor):
            grad.copy_(torch.where(positions_of(grad) == 12, torch.inf, grad))
        else:
            row[4, 0] = torch.inf

    def positions_of(grad):
        return sw.distribute_tensor(
            torch.arange(grad.numel()).view(grad.shape), grad.device_mesh, [Replicate()], src_data_rank=None
        )

    expect_as_dense(train, tolerance=1e-4)


# the gradient that gets a NaN, the rank where its piece does, and what is in the list besides
SPOILED = {
    "sharded": (0, 2),
    "on a mesh of two dims": (1, 3),
    "on a mesh of two ranks": (3, 1),
    "an empty piece elsewhere": (5, 2),
}


@pytest.mark.parametrize(("which", "where"), SPOILED.values(), ids=SPOILED.keys())
def test_ranks_agree_over_several_meshes_by_one_message(which, where):
    def on_rank(rank):
        parameters = distributed_parameters("mixed")
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 4.0)
        if rank == where:
            parameters[which].grad.to_local().fill_(torch.nan)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        before = [parameter.detach().clone() for parameter in parameters]
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.ones(()))
        with sw.CommDebugMode() as comm:
            scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0
        assert comm.get_comm_counts() == {"all_reduce": 1}
        expect_same(parameters, [x.full_tensor() if isinstance(x, DTensor) else x for x in before])
        expect_same([parameters[4].grad], [torch.ones(2, 2)])

    run_ranks(4, on_rank)


def test_replicas_need_no_message_and_a_sharded_model_one():
    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for placements, n_messages in (({}, 0), (LAYOUTS["sharded"], 1)):
            model = sharded(copy.deepcopy(MLP), mesh, placements)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            scaler.scale(torch.ones(()))
            with sw.communication_policy("error"), sw.CommDebugMode() as comm:
                scaler.unscale_(optimizer)
            assert comm.get_total_counts() == n_messages
            assert torch.equal(model[0].weight.grad.full_tensor(), torch.full((10, 3), 0.25))

    run_ranks(4, on_rank)


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_terms_of_a_partial_gradient_are_unscaled_and_their_sum_is_what_must_be_finite(kind):
    """Finite terms of which the sum is not: as if the sum had been computed first."""

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        largest = torch.finfo(torch.float32).max
        for term, is_finite in ((8.0, True), (largest / 2, kind == "avg"), (torch.inf, False)):
            parameter = nn.Parameter(sw.zeros(3, device_mesh=mesh, placements=[Replicate()]))
            terms = torch.full((3,), term if rank < 3 else 0.0)
            parameter.grad = DTensor.from_local(terms, mesh, [Partial(kind)])
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            scaler.scale(torch.ones(()))
            optimizer = torch.optim.SGD([parameter], lr=1.0)
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == (4.0 if is_finite else 2.0), (term, kind)
            if term == 8.0:
                moved = -6.0 if kind == "sum" else -1.5
                assert torch.equal(parameter.full_tensor().detach(), torch.full((3,), moved))

    run_ranks(4, on_rank)


def test_fused_steps_unscale_gradients_of_any_layout():
    def train(parameter, grad):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.ones(()))
        parameter.grad = grad
        scaler.step(torch.optim.SGD([parameter], lr=1.0, momentum=0.9, fused=True))
        return [parameter, parameter.grad]

    grad = torch.arange(12.0).view(6, 2)
    expected = train(nn.Parameter(torch.zeros(6, 2)), grad.clone())

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for placement in (Shard(0), Shard(1), Replicate(), Partial()):
            parameter = nn.Parameter(sw.zeros(6, 2, device_mesh=mesh, placements=[Shard(0)]))
            given = sw.distribute_tensor(grad.clone(), mesh, [placement], src_data_rank=None)
            expect_same(train(parameter, given), expected, where=str(placement))

    run_ranks(4, on_rank)


def test_sparse_gradients_are_unscaled():
    ids, weight = torch.tensor([0, 3, 3, 7]), torch.linspace(-1, 1, 24).view(8, 3)

    def train(table, where):
        optimizer = torch.optim.SGD([table], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(2):
            optimizer.zero_grad()
            scaler.scale(F.embedding(where, table, sparse=True).square().sum()).backward()
            if step == 1:
                table.grad = table.grad * torch.inf
            scaler.step(optimizer)
            scaler.update()
        return [table, scaler.get_scale()]

    expected = train(nn.Parameter(weight.clone()), ids)

    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        table = nn.Parameter(sw.distribute_tensor(weight, mesh, [Shard(0)]))
        expect_same(train(table, replicas_on(mesh)(ids)), expected)

    run_ranks(4, on_rank)


def test_what_cannot_be_unscaled_is_an_error_on_all_ranks():
    def on_rank(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        product = DTensor.from_local(torch.ones(3), mesh, [Partial("product")])
        one, found = torch.ones(()), torch.zeros(())
        with pytest.raises(ValueError, match=r"gradient 0 is laid out as \[Partial\(product\)\].*Redistribute it"):
            torch._amp_foreach_non_finite_check_and_unscale_([product], found, one)
        grad = sw.ones(4, device_mesh=mesh, placements=[Shard(0)])
        with pytest.raises(ValueError, match="found_inf and inv_scale must be plain"):
            torch._amp_foreach_non_finite_check_and_unscale_([grad], found, grad.sum())
        with pytest.raises(RuntimeError, match="not floating point"):
            torch._amp_foreach_non_finite_check_and_unscale_([grad.long()], found, one)
        assert len(dense_parameters()) > 0

    run_ranks(2, on_rank)
