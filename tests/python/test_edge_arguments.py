"""Arguments at the edge of what operators take: answered, or refused in torch's words, as for dense tensors."""

import re

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

PLACEMENTS = [Shard(0), Shard(0, sizes=[0, 2]), Shard(1), Partial(), Replicate()]


def on_ranks(check) -> None:
    run_ranks(2, lambda rank: check(sw.init_device_mesh("cpu", (2,))))


@pytest.mark.parametrize("call", [torch.any, torch.all], ids=lambda call: call.__name__)
@pytest.mark.parametrize("dims", [[], None, [1], [0, 1]], ids=repr)
@pytest.mark.parametrize("keepdim", [False, True])
def test_any_and_all_of_some_dims(call, dims, keepdim):
    dense = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 4.0]])

    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(dense, mesh, [placement])
            result = call(x, dim=dims, keepdim=keepdim)
            torch.testing.assert_close(result.full_tensor(), call(dense, dim=dims, keepdim=keepdim))

    on_ranks(check)


@pytest.mark.parametrize("call", [torch.dot, torch.vdot], ids=lambda call: call.__name__)
def test_dot_takes_vectors(call):
    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(torch.eye(2), mesh, [placement])
            with pytest.raises(RuntimeError, match="1D tensors expected, but got 2D and 2D tensors"):
                call(x, x)
            with pytest.raises(RuntimeError, match="1D tensors expected, but got 1D and 2D tensors"):
                call(x[0], x)

    on_ranks(check)


def test_group_norm_takes_groups_that_divide_the_channels():
    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(torch.ones(2, 4, 3), mesh, [placement])
            statistics = sw.distribute_tensor(torch.ones(2, 3), mesh, [Replicate()])
            for n_groups, words in ((0, "greater than 0, got 0"), (-1, "greater than 0, got -1"), (3, "num_groups=3")):
                with pytest.raises(RuntimeError, match=words):
                    torch.native_group_norm(x, None, None, 2, 4, 3, n_groups, 1e-5)
                with pytest.raises(RuntimeError, match=words):
                    torch.ops.aten.native_group_norm_backward(
                        x, x, statistics, statistics, None, 2, 4, 3, n_groups, [True, False, False]
                    )

    on_ranks(check)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_of_one_class_on_ranks_without_samples(reduction):
    scores, classes = torch.arange(3.0).view(3, 1), torch.zeros(3, dtype=torch.int64)

    def check(mesh):
        x, y = (sw.distribute_tensor(dense, mesh, [Shard(0)]) for dense in (scores, classes))
        for call, labels, target in (
            (F.multi_margin_loss, y, classes),
            (F.multilabel_margin_loss, y[:, None], classes[:, None]),
        ):
            ours, expected = call(x, labels, reduction=reduction), call(scores, target, reduction=reduction)
            torch.testing.assert_close(ours.full_tensor(), expected)

    run_ranks(4, lambda rank: check(sw.init_device_mesh("cpu", (4,))))


@pytest.mark.parametrize(
    ("dtype", "alpha"), [(torch.bool, 2), (torch.bool, 0), (torch.int64, 2.5), (torch.bfloat16, 2)]
)
def test_the_factor_of_index_add_takes_the_dtype_of_the_tensors(dtype, alpha):
    dense, source, index = torch.zeros(2, 3, dtype=dtype), torch.ones(3, 3, dtype=dtype), torch.tensor([1, 0, 1])
    expected = dense.index_add(0, index, source, alpha=alpha)

    def check(mesh):
        for placement in (Shard(0), Shard(0, sizes=[0, 2]), Shard(1), Replicate()):
            x = sw.distribute_tensor(dense, mesh, [placement])
            rows, places = (sw.distribute_tensor(each, mesh, [Shard(0)]) for each in (source, index))
            assert torch.equal(x.index_add(0, places, rows, alpha=alpha).full_tensor(), expected)
            assert torch.equal(x.index_add_(0, places, rows, alpha=alpha).full_tensor(), expected)

    on_ranks(check)


def test_a_scalar_has_one_place():
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(()), mesh, [Replicate()])
        assert x.index_select(0, torch.zeros(1, dtype=torch.int64)).shape == ()
        with pytest.raises(RuntimeError, match="Index to scalar can have only 1 value, got 2"):
            x.index_select(0, torch.zeros(2, dtype=torch.int64))

    on_ranks(check)


@pytest.mark.parametrize("call", [torch.var, torch.std, torch.var_mean, torch.std_mean], ids=lambda call: call.__name__)
def test_a_dim_given_twice_is_an_error_on_ranks_without_elements_too(call):
    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(torch.ones(2, 3), mesh, [placement])
            with pytest.raises(RuntimeError, match="dim 0 appears multiple times in the list of dims"):
                call(x, dim=[0, -2])
            call(x, dim=[0, 1])

    on_ranks(check)


@pytest.mark.parametrize("call", [torch.cummax, torch.cummin], ids=lambda call: call.__name__)
def test_running_extremes_of_complex_numbers_are_an_error_on_ranks_without_elements_too(call):
    def check(mesh):
        for placement in (Shard(0), Shard(0, sizes=[0, 2]), Shard(1), Partial(), Replicate()):
            x = sw.distribute_tensor(torch.ones(2, 3, dtype=torch.complex64), mesh, [placement])
            with pytest.raises(NotImplementedError, match="not implemented for ComplexFloat"):
                call(x, 0)

    on_ranks(check)


@pytest.mark.parametrize(
    ("call", "dtype", "words"),
    [
        (lambda x: x.median(1), torch.complex64, "not implemented for 'ComplexFloat'"),
        (lambda x: x.pow(-1), torch.int64, "negative integer powers"),
        (lambda x: torch.maximum(x, x), torch.complex64, "maximum not implemented for complex"),
        (lambda x: x.sort(0), torch.complex64, "[Ss]ort does not support complex"),
        (
            lambda x: x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.int64), x, "amax"),
            torch.complex64,
            "not implemented",
        ),
    ],
    ids=["dtype", "number", "two operands", "sort", "scatter_reduce"],
)
def test_what_a_kernel_refuses_is_refused_after_the_same_messages_on_ranks_without_elements(call, dtype, words):
    def check(mesh):
        for placement in (Shard(1, sizes=[0, 1, 2]), Shard(0, sizes=[0, 0, 1]), Partial()):
            x = sw.distribute_tensor(torch.ones(1, 3, dtype=dtype), mesh, [Replicate()])
            x = x.redistribute(placements=[placement])
            if dtype == torch.int64:
                x.pow(2)
            with pytest.raises((RuntimeError, NotImplementedError), match=words):
                call(x)
            assert x.full_tensor().shape == (1, 3)  # the ranks still agree

    run_ranks(3, lambda rank: check(sw.init_device_mesh("cpu", (3,))), timeout=20)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("shape", [(1, 0), (2, 0, 3), (2, 4, 0), (0, 4, 3)], ids=str)
def test_group_norm_of_nothing(shape, n_groups):
    refusal = None  # torch 2.14 refuses some of these shapes
    try:
        F.group_norm(torch.ones(shape), n_groups)
    except RuntimeError as error:
        refusal = str(error)

    def check(mesh):
        for placement in (Shard(0), Shard(1), Replicate()):
            x = sw.distribute_tensor(torch.ones(shape), mesh, [placement]).requires_grad_()
            if refusal:
                with pytest.raises(RuntimeError, match=re.escape(refusal)):
                    F.group_norm(x, n_groups)
                continue
            result = F.group_norm(x, n_groups)
            result.sum().backward()
            assert result.shape == x.grad.shape == shape

    on_ranks(check)


CALLS_ALONG_A_DIM = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "logsumexp": torch.logsumexp,
    "sort": torch.sort,
    "glu": F.glu,
    "cat": lambda x, dim: torch.cat([x, x], dim),
    "stack": lambda x, dim: torch.stack([x, x], dim),
    "cross": lambda x, dim: torch.linalg.cross(x, x, dim=dim),
    "var": torch.var,
    "aminmax": lambda x, dim: torch.aminmax(x, dim=dim),
    "fft": lambda x, dim: torch.ops.aten._fft_c2c(x.to(torch.complex64), [dim], 0, True),
}


@pytest.mark.parametrize("call", CALLS_ALONG_A_DIM.values(), ids=CALLS_ALONG_A_DIM)
def test_a_dim_out_of_range_is_an_error(call):
    def check(mesh):
        for shape in ((), (2,), (2, 3)):
            x = sw.distribute_tensor(torch.ones(shape), mesh, [Replicate()])
            for dim in (len(shape) + 1, -len(shape) - 2, -9, 100):
                with pytest.raises((IndexError, RuntimeError)):
                    call(x, dim)

    on_ranks(check)


WRONG_SHAPES = {
    "grid_sample": (lambda x, y: F.grid_sample(x, y, align_corners=False), (2, 3), (2,)),
    "stack": (lambda x, y: torch.stack([x, y]), (2,), (2, 3)),
    "addmm": (lambda x, y: torch.addmm(y, x, x), (2, 2), (1, 2, 2)),
    "linear": (lambda x, y: F.linear(x, x, y), (2, 2), (1, 2, 2)),
    "layer_norm": (lambda x, y: F.layer_norm(x, (3,), y), (2, 3), (1, 3)),
    "trilinear": (lambda x, y: torch.ops.aten._trilinear(x, y, y, [1, 3], [0], [1, 2], [2, 3]), (2, 3), (2,)),
}


@pytest.mark.parametrize(("call", "shape", "other"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_tensors_of_other_dims_than_the_operator_takes_are_an_error(call, shape, other):
    def check(mesh):
        for placement in (Shard(0), Replicate()):
            x = sw.distribute_tensor(torch.ones(shape), mesh, [placement])
            y = sw.distribute_tensor(torch.ones(other), mesh, [Replicate()])
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                call(x, y)

    on_ranks(check)


REFUSED_DTYPES = {
    "bucketize": (lambda x: torch.bucketize(x, whole(x, [0.0, 1.0])), torch.complex64),
    "cdist": (lambda x: torch.cdist(x, x), torch.bfloat16),
    "addmm": (lambda x: torch.addmm(x, x, x.T[:, :1].expand(3, 3)), torch.bool),
    "bilinear": (lambda x: F.bilinear(x, x, x[None, :1].expand(1, 3, 3)), torch.bool),
    "grid_sample": (
        lambda x: F.grid_sample(x[:, None, None], x[:, :2].reshape(2, 1, 1, 2), align_corners=False),
        torch.int64,
    ),
    "glu": (lambda x: F.glu(x[:, :2], 1), torch.complex64),
    "group_norm": (lambda x: F.group_norm(x, 1), torch.int64),
    "instance_norm": (lambda x: F.instance_norm(x[:, :, None].expand(2, 3, 2)), torch.complex64),
    "conv1d": (lambda x: F.conv1d(x[:, None], whole(x, [[[True]]])), torch.bool),
    "nll_loss": (lambda x: F.nll_loss(x, whole(x, [0, 1])), torch.complex64),
    "trace": (torch.trace, torch.bool),
    "rms_norm": (lambda x: F.rms_norm(x, (3,)), torch.int64),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), torch.complex64),
    "bernoulli": (torch.bernoulli, torch.int64),
}


def whole(like, values):
    return sw.distribute_tensor(torch.tensor(values), like.device_mesh, [Replicate()])


@pytest.mark.parametrize(("call", "dtype"), REFUSED_DTYPES.values(), ids=REFUSED_DTYPES.keys())
def test_dtypes_that_a_kernel_refuses_are_refused_on_ranks_without_elements_too(call, dtype):
    def check(mesh):
        for placement in (Shard(0, sizes=[0, 2]), Shard(0, sizes=[2, 0])):
            x = sw.distribute_tensor(torch.ones(2, 3, dtype=dtype), mesh, [placement])
            with pytest.raises(NotImplementedError, match="not implemented for"):
                call(x)
            assert x.full_tensor().shape == (2, 3)  # the ranks still agree

    on_ranks(check)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_classes_have_the_dtype_of_the_input(dtype):
    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(torch.ones(2, 3, dtype=dtype), mesh, [placement])
            with pytest.raises(RuntimeError, match="expected scalar type"):
                F.cross_entropy(x, whole(x, [0, 1]), weight=whole(x, [1.0, 1.0, 1.0]))

    on_ranks(check)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.complex64])
def test_classes_are_integers(dtype):
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(2, 3), mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match="expected target dtype to be Long or Byte"):
            F.cross_entropy(x, sw.distribute_tensor(torch.ones(2, dtype=dtype), mesh, [Shard(0)]))

    on_ranks(check)


@pytest.mark.parametrize("n_weights", [0, 1, 2])
def test_there_is_a_weight_for_each_class(n_weights):
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(2, 3), mesh, [Shard(0)])
        for target in (whole(x, [0, 1]), x):
            with pytest.raises(RuntimeError, match="for all 3 classes or no classes"):
                F.cross_entropy(x, target, weight=whole(x, [1.0] * n_weights))

    on_ranks(check)


@pytest.mark.parametrize(
    ("convolve", "image", "weight"),
    [
        (F.conv1d, (2, 2, 5), (0, 2, 3)),
        (F.conv1d, (2, 2, 5), (2, 0, 3)),
        (F.conv1d, (2, 2, 5), (2, 2, 0)),
        (F.conv1d, (0, 2, 5), (2, 3, 3)),
        (F.conv_transpose1d, (2, 2, 5), (0, 2, 3)),
        (F.conv_transpose1d, (2, 2, 5), (2, 0, 3)),
    ],
)
def test_weights_of_convolutions_that_torch_refuses(convolve, image, weight):
    with pytest.raises(RuntimeError):
        convolve(torch.ones(image), torch.ones(weight))

    def check(mesh):
        for placement in (Shard(0), Shard(2), Replicate()):
            x = sw.distribute_tensor(torch.ones(image), mesh, [placement])
            with pytest.raises(RuntimeError, match="weight"):
                convolve(x, sw.distribute_tensor(torch.ones(weight), mesh, [Replicate()]))

    on_ranks(check)


def test_a_convolution_of_no_channels_is_an_error():
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(4, 0, 5), mesh, [Shard(0)])
        with pytest.raises(
            NotImplementedError, match=r"\[aten::convolution\] the input of shape \[4, 0, 5\] has no channels"
        ):
            F.conv1d(x, sw.distribute_tensor(torch.ones(2, 0, 3), mesh, [Replicate()]))

    on_ranks(check)


@pytest.mark.parametrize("reduce_op", ["sum", "avg", "max", "min", "product"])
@pytest.mark.parametrize("value", [3.0, torch.tensor(3.0)], ids=["number", "tensor"])
def test_filling_terms_sends_nothing(reduce_op, value):
    def check(mesh):
        x = sw.DTensor.from_local(torch.ones(2, 3), mesh, [Partial(reduce_op)])
        with sw.debug.CommDebugMode() as sent:
            x.fill_(value)
        assert not sent.get_comm_counts() and x.placements == (Partial(reduce_op),)
        assert torch.equal(x.full_tensor(), torch.full((2, 3), 3.0))

    on_ranks(check)


@pytest.mark.parametrize("dim", [1, -2, (1,)], ids=repr)
def test_a_scalar_has_no_other_dim_to_squeeze(dim):
    def check(mesh):
        for placement in (Replicate(), Partial()):
            x = sw.distribute_tensor(torch.tensor(1.0), mesh, [placement])
            assert x.squeeze(0).shape == x.squeeze(-1).shape == ()
            for call in (x.squeeze, x.clone().squeeze_):
                with pytest.raises(IndexError, match=r"expected to be in range of \[-1, 0\]"):
                    call(dim)

    on_ranks(check)


def test_empty_tensors_are_rolled_along_any_dim():
    def check(mesh):
        for placement in PLACEMENTS:
            if placement == Shard(0, sizes=[0, 2]):
                continue
            x = sw.distribute_tensor(torch.ones(3, 0), mesh, [placement])
            assert x.roll(1, 5).shape == (3, 0)
            with pytest.raises(RuntimeError, match="must align"):
                x.roll((1, 2), 0)

    on_ranks(check)


@pytest.mark.parametrize("p", [-1, -2.5, float("-inf")])
def test_nothing_has_no_norm_of_a_negative_power(p):
    def check(mesh):
        for placement in (Shard(0), Shard(1), Partial(), Replicate()):
            x = sw.distribute_tensor(torch.ones(0, 3), mesh, [placement])
            for dims in (None, 0, (0, 1)):
                with pytest.raises((RuntimeError, IndexError)):
                    torch.linalg.vector_norm(x, p, dims)
            assert torch.linalg.vector_norm(x, p, 1).shape == (0,)
        number = sw.full((), -3.0, device_mesh=mesh)
        assert torch.linalg.vector_norm(number, p, 0).item() == torch.linalg.vector_norm(torch.tensor(-3.0), p, 0)

    on_ranks(check)


OUT_DTYPES = {
    "argmax": (lambda x, out: torch.argmax(x, 0, out=out), torch.int32),
    "amax": (lambda x, out: torch.amax(x, 0, out=out), torch.float64),
    "neg": (lambda x, out: torch.neg(x, out=out), torch.float64),
    "norm": (lambda x, out: torch.linalg.vector_norm(x, 2, 0, out=out), torch.float16),
}


@pytest.mark.parametrize(("call", "dtype"), OUT_DTYPES.values(), ids=OUT_DTYPES.keys())
def test_dtypes_of_out_that_torch_refuses(call, dtype):
    with pytest.raises(RuntimeError) as dense:
        call(torch.ones(2, 3), torch.zeros(0, dtype=dtype))

    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(torch.ones(2, 3), mesh, [placement])
            with pytest.raises(RuntimeError) as ours:
                call(x, sw.distribute_tensor(torch.zeros(0, dtype=dtype), mesh, [Replicate()]))
            assert str(ours.value).splitlines()[0] == str(dense.value).splitlines()[0]

    on_ranks(check)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_integers_have_no_mean_whatever_the_dtype_of_out(dtype):
    def check(mesh):
        x, out = sw.ones(2, 3, dtype=dtype, device_mesh=mesh), sw.zeros(3, device_mesh=mesh)
        with pytest.raises(RuntimeError):
            torch.mean(torch.ones(2, 3, dtype=dtype), 0, out=torch.zeros(3))
        with pytest.raises(RuntimeError, match="Pass a floating dtype="):
            torch.mean(x, 0, out=out)

    on_ranks(check)


@pytest.mark.parametrize("call", [torch.sum, torch.prod, torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64])
def test_sums_and_products_are_computed_in_the_dtype_of_out(call, dtype):
    dense = torch.tensor([[1.5, 2.5, 3.5], [2.5, 1.5, 0.5]])
    try:
        expected = call(dense, 0, out=torch.zeros(0, dtype=dtype))
    except RuntimeError:
        expected = None

    def check(mesh):
        for placement in PLACEMENTS:
            x = sw.distribute_tensor(dense, mesh, [Replicate()]).redistribute(placements=[placement])
            out = sw.distribute_tensor(torch.zeros(0, dtype=dtype), mesh, [Replicate()])
            if expected is None:
                with pytest.raises(RuntimeError):
                    call(x, 0, out=out)
            else:
                assert torch.equal(call(x, 0, out=out).full_tensor(), expected)

    on_ranks(check)
