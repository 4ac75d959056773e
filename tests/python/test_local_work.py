"""The whole tensor is read and written by the kernels that the dense operator calls, and no others."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

ROWS, COLUMNS = 12, 20
CLASSES = torch.arange(ROWS) % COLUMNS

# Functions of x [12, 20] and y, which is like it.
WORK = {
    "sum": lambda x, y: x.sum(),
    "sum of dim 0": lambda x, y: x.sum(0),
    "mean": lambda x, y: x.mean(),
    "norm": lambda x, y: torch.linalg.vector_norm(x),
    "norm of dim 0": lambda x, y: torch.linalg.vector_norm(x, 1, dim=0),
    "softmax of dim 0": lambda x, y: x.softmax(0),
    "log_softmax of dim 0": lambda x, y: x.log_softmax(0),
    "logsumexp of dim 0": lambda x, y: x.logsumexp(0),
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="sum"),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "batch_norm of planes": lambda x, y: F.batch_norm(x.view(ROWS, 5, 2, 2), None, None, training=True),
}


def kernels(function, *operands):
    """The names of the operators that get a tensor of all elements in forward and backward, views left out."""
    views = {"aten::view", "aten::expand", "aten::as_strided", "aten::reshape", "aten::detach", "aten::_reshape_alias"}
    leaves = [operand for operand in operands if operand.requires_grad]
    grad = torch.ones_like(function(*operands))
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.autograd.grad(function(*operands), leaves, grad)
    whole = ROWS * COLUMNS
    return {
        event.name.replace("_native_batch_norm_legit", "native_batch_norm")
        for event in profile.events()
        if event.name.startswith("aten::")
        and any(torch.Size(shape).numel() >= whole for shape in event.input_shapes if shape)
    } - views


def both(mesh, placement, *shapes):
    torch.manual_seed(0)
    dense = [torch.randn(shape) for shape in shapes]
    ours = [sw.distribute_tensor(each, mesh, [placement]).requires_grad_() for each in dense]
    return [each.requires_grad_() for each in dense], ours


@pytest.mark.parametrize("name", WORK)
def test_one_rank_calls_the_kernels_of_the_dense_operator(name):
    def body(rank):
        dense, ours = both(sw.init_device_mesh("cpu", (1,)), Shard(0), (ROWS, COLUMNS), (ROWS, COLUMNS))
        if "loss" not in name:
            dense, ours = dense[:1], ours[:1]
        call = lambda *operands: WORK[name](operands[0], operands[-1])  # noqa: E731
        assert kernels(call, *ours) <= kernels(call, *dense)

    run_ranks(1, body)


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (ROWS, COLUMNS, 2, 3)])
def test_one_rank_picks_classes_by_the_dense_kernel(shape):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        (dense,), (ours,) = both(mesh, Shard(0), shape)
        classes = CLASSES.view(ROWS, *[1] * (len(shape) - 2)).expand(ROWS, *shape[2:]).contiguous()
        ids = sw.distribute_tensor(classes, mesh, [Shard(0)])
        for loss in (F.nll_loss, F.cross_entropy):
            assert kernels(lambda x: loss(x, ids), ours) <= kernels(lambda x: loss(x, classes), dense)  # noqa: B023

    run_ranks(1, body)


def test_a_linear_layer_flattens_what_is_not_contiguous_as_the_dense_one_does():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        dense, ours = both(mesh, Replicate(), (8, ROWS, COLUMNS), (COLUMNS, COLUMNS), (COLUMNS,))
        call = lambda x, w, b: F.linear(x.transpose(0, 1), w, b)  # noqa: E731
        torch.testing.assert_close(call(*ours).to_local(), call(*dense))
        assert "aten::bmm" not in kernels(call, *ours)

    run_ranks(1, body)


@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("name", ["sum", "sum of dim 0", "mean"])
def test_the_gradient_of_a_sum_is_not_written_out(n_ranks, name):
    def body(rank):
        x = sw.ones(ROWS, COLUMNS, device_mesh=sw.init_device_mesh("cpu", (n_ranks,)), placements=[Shard(0)])
        x.requires_grad_()
        result = WORK[name](x, None)
        (grad,) = torch.autograd.grad(result, x, torch.ones_like(result))
        assert grad.placements == (Shard(0),)
        assert grad.to_local().stride(0) == 0 and grad.to_local().shape == (ROWS // n_ranks, COLUMNS)

    run_ranks(n_ranks, body)


@pytest.mark.parametrize("n_ranks", [1, 4])
def test_gradients_that_leaves_keep_have_memory_of_their_own(n_ranks):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        x, y, z = (sw.ones(ROWS, COLUMNS, device_mesh=mesh, placements=[Shard(0)]).requires_grad_() for _ in range(3))
        (x + y).sum().backward()
        z.sum().backward()
        x.grad.mul_(3)
        z.grad.mul_(3)
        y.grad[0] = 5
        assert x.grad.full_tensor().eq(3).all() and z.grad.full_tensor().eq(3).all()
        assert y.grad.full_tensor().sum() == (ROWS + 4) * COLUMNS

    run_ranks(n_ranks, body)
