"""Strides are those of the dense tensors, and every piece lies in memory as they say: channels last too."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

LAST = torch.channels_last

# Of images x [2, 4, 6, 6] and kernels w [4, 4, 3, 3].
CALLS = {
    "conv2d": lambda x, w: F.conv2d(x, w, padding=1),
    "strided conv2d": lambda x, w: F.conv2d(x, w, stride=2, dilation=2, padding=2),
    "conv_transpose2d": lambda x, w: F.conv_transpose2d(x, w),
    "two groups": lambda x, w: F.conv2d(x, w[:, :2], groups=2),
    "max_pool2d": lambda x, w: F.max_pool2d(x, 2) * w.sum(),
    "avg_pool2d": lambda x, w: F.avg_pool2d(x, 2) * w.sum(),
    "interpolate": lambda x, w: F.interpolate(x, scale_factor=2) * w.sum(),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w[0, :, 0, 0], None, True),
    "relu": lambda x, w: F.relu(x) * w.sum(),
    "cat": lambda x, w: torch.cat([x, x], 1) * w.sum(),
    "cat of rows": lambda x, w: torch.cat([x, x], 0) * w.sum(),
    "pad": lambda x, w: F.pad(x, (1, 1, 1, 1)) * w.sum(),
    "bias": lambda x, w: x + w[0, :, :1, :1],
    "scalar": lambda x, w: x * w.sum(),
    "row by row": lambda x, w: x.contiguous() * w.sum(),
    "channels last": lambda x, w: x.contiguous(memory_format=LAST) * w.sum(),
    "masked_fill": lambda x, w: x.masked_fill(x > 1, 0.5) * w.sum(),  # row by row, elementwise or not
    "clone": lambda x, w: x.clone() * w.sum(),
}
PLACEMENTS = [Shard(0), Shard(1), Shard(2), Shard(3, sizes=[4, 2]), Replicate()]


def assert_laid_out(ours, theirs, what):
    assert ours.stride() == theirs.stride(), f"{what}: strides {ours.stride()}, dense {theirs.stride()}"
    piece = ours.to_local()
    of_piece = torch.empty_strided(theirs.shape, theirs.stride())[tuple(slice(0, n) for n in piece.shape)]
    in_order = of_piece.clone(memory_format=torch.preserve_format).stride()
    differ = [d for d, n in enumerate(piece.shape) if n > 1 and piece.stride(d) != in_order[d]]
    assert piece.numel() == 0 or not differ, f"{what}: a piece {tuple(piece.shape)} has strides {piece.stride()}"


@pytest.mark.parametrize("formats", [(LAST, LAST), (LAST, None), (None, LAST), (None, None)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_laid_out_as_the_dense_ones(name, formats):
    call = CALLS[name]
    torch.manual_seed(0)
    shapes = ((2, 4, 6, 6), (4, 4, 3, 3))
    operands = [torch.randn(s).contiguous(memory_format=f or torch.contiguous_format) for s, f in zip(shapes, formats)]
    dense = [operand.clone().requires_grad_() for operand in operands]
    expected = call(*dense)
    expected.sum().backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for of_image in PLACEMENTS:
            for of_kernel in (Replicate(), Shard(0), Shard(1)):
                what = f"{name} of {of_image} and {of_kernel}"
                ours = [
                    sw.distribute_tensor(operand, mesh, [placement]).requires_grad_()
                    for operand, placement in zip(operands, (of_image, of_kernel))
                ]
                result = call(*ours)
                assert_laid_out(result.detach(), expected, what)
                torch.testing.assert_close(result.full_tensor(), expected)
                result.sum().backward()
                for which, a, b in zip("xw", ours, dense):
                    assert_laid_out(a.grad, b.grad, f"{what}, gradient of {which}")
                    torch.testing.assert_close(a.grad.full_tensor(), b.grad, rtol=1e-4, atol=1e-4)

    run_ranks(2, check)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_the_gradient_of_to_local_is_laid_out_as_the_tensor(placement):
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = torch.randn(2, 4, 6, 6).contiguous(memory_format=LAST).requires_grad_()
        ours = sw.distribute_tensor(x, mesh, [placement])
        (ours.to_local() * 2).sum().backward()
        assert_laid_out(ours.grad, torch.full_like(x, 2), str(placement))
        assert ours.grad.to_local().eq(2).all()

    run_ranks(2, check)


# Of a transposed matrix x [5, 3], and indices of three rows or columns.
MATRIX_CALLS = {
    "softmax along rows": lambda x, at: x.softmax(0),
    "log_softmax along columns": lambda x, at: x.log_softmax(1),
    "softmin": lambda x, at: F.softmin(x, 0),
    "index_add": lambda x, at: x.index_add(1, at, x),
    "index_copy": lambda x, at: x.index_copy(1, at, x),
    "index_fill": lambda x, at: x.index_fill(1, at[:2], 0.5),
    "index_add of nothing": lambda x, at: x.index_add(1, at[:0], x[:, :0]),
}


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Shard(0, sizes=[1, 4]), Replicate()], ids=str)
@pytest.mark.parametrize("name", MATRIX_CALLS)
def test_results_of_a_transposed_matrix_are_laid_out_as_the_dense_ones(name, placement):
    call, x, at = MATRIX_CALLS[name], torch.randn(3, 5).mT, torch.tensor([2, 0, 1])

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ours = call(sw.distribute_tensor(x, mesh, [placement]), sw.distribute_tensor(at, mesh, [Replicate()]))
        assert_laid_out(ours, call(x, at), str(placement))
        torch.testing.assert_close(ours.full_tensor(), call(x, at))

    run_ranks(2, check)


@pytest.mark.parametrize(
    ("equation", "of_x", "of_w"),
    [("bsd,de->bse", (4, 3, 2), (2, 5)), ("bsed,cd->ebsc", (4, 3, 2, 1), (5, 1)), ("bsd,ed->bes", (1, 3, 2), (5, 2))],
)
def test_sums_of_products_have_the_dense_strides(equation, of_x, of_w):
    x, w = torch.randn(of_x), torch.randn(of_w)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for placement in (Replicate(), Shard(1)):
            ours = torch.einsum(
                equation, sw.distribute_tensor(x, mesh, [placement]), sw.distribute_tensor(w, mesh, [Replicate()])
            )
            assert ours.stride() == torch.einsum(equation, x, w).stride()

    run_ranks(2, check)
