"""Operators along a sharded dim that send a few values per shard: in one collective where these are few."""

import copy

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.debug import CommDebugMode
from shardwise.parallel import ColwiseParallel, parallelize_module
from shardwise.testing import run_ranks

ROWS = [Shard(0), Shard(0, sizes=[1, 0, 6])]
COLUMNS = [Shard(1), Shard(1, sizes=[5, 2, 3])]


def dense(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def counted(function):
    with CommDebugMode() as counts:
        result = function()
    return result, counts.get_total_counts()


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("placement", COLUMNS, ids=str)
def test_layer_norm_of_a_sharded_dim_sends_once_each_way(placement, has_weight):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x, weight, up = dense(7, 10) + 1000, dense(10) if has_weight else None, dense(7, 10)
        ours = sw.distribute_tensor(x, mesh, [placement]).requires_grad_()
        theirs = x.clone().requires_grad_()
        of_ours = None if weight is None else sw.distribute_tensor(weight, mesh, [Replicate()])
        result, n = counted(lambda: F.layer_norm(ours, (10,), of_ours))
        expected = F.layer_norm(theirs, (10,), weight)
        assert n == 1 and result.placements == (placement,)
        torch.testing.assert_close(result.full_tensor(), expected)
        expected.backward(up)
        _, n = counted(lambda: result.backward(sw.distribute_tensor(up, mesh, [placement], src_data_rank=None)))
        assert n == 1
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)

    run_ranks(3, body)


def test_layer_norm_of_many_rows_sends_twice_and_fewer_bytes():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = dense(3000, 6)
        result, n = counted(lambda: F.layer_norm(sw.distribute_tensor(x, mesh, [Shard(1)], src_data_rank=None), (6,)))
        assert n == 2
        torch.testing.assert_close(result.full_tensor(), F.layer_norm(x, (6,)))

    run_ranks(3, body)


@pytest.mark.parametrize("shape", [(3, 8), (3, 8, 2)], ids=["layer_norm", "group_norm"])
def test_a_norm_before_a_column_layer_reduces_its_gradient_once(shape):
    """The gradient that the layer gives back is Partial; those of input, weight and bias are all made of it."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        torch.manual_seed(0)
        norm = torch.nn.LayerNorm(8) if len(shape) == 2 else torch.nn.GroupNorm(2, 8)
        plain = [dense(*shape), *(p.detach().double() for p in norm.parameters())]
        ours = [sw.distribute_tensor(x, mesh, [Replicate()], src_data_rank=None).requires_grad_() for x in plain]
        theirs = [x.clone().requires_grad_() for x in plain]
        up = dense(*shape)

        def normed(x, weight, bias):
            return F.layer_norm(x, (8,), weight, bias) if len(shape) == 2 else F.group_norm(x, 2, weight, bias)

        normed(*theirs).backward(up)
        result = normed(*ours)
        terms = sw.distribute_tensor(up, mesh, [Partial()], src_data_rank=None)
        gradients, n = counted(
            lambda: [
                g.redistribute(mesh, [Replicate()]) for g in torch.autograd.grad(result, ours, terms, retain_graph=True)
            ]
        )
        assert n == 1
        for gradient, x in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(gradient.to_local(), x.grad)
        _, n = counted(lambda: torch.autograd.grad(result, ours[0], terms, retain_graph=True))
        assert n == 0  # one gradient stays Partial: what follows may be linear, too

    run_ranks(2, body)


# rows, inputs and outputs of a layer; its placements of input and weight; collectives of the backward and of moving both gradients to these
# placements, and the bytes of all of them, in units of (n - 1) / n elements
@pytest.mark.parametrize(
    ("sizes", "of_input", "of_weight", "n", "n_elements"),
    [
        ((4, 8, 16), Shard(1), Shard(1), 1, 2 * 4 * 16),  # both products need the whole gradient
        ((4, 8, 16), Replicate(), Shard(0), 2, 4 * 16 + 2 * 4 * 8),  # the weight's takes the input's part
        ((4, 8, 16), Replicate(), Shard(1), 2, 2 * 4 * 16 + 4 * 8),
        ((4, 8, 16), Shard(1), Replicate(), 2, 2 * 4 * 16 + 8 * 16),
        ((4, 8, 16), Shard(0), Replicate(), 2, 4 * 16 + 2 * 8 * 16),
        ((4, 8, 16), Replicate(), Replicate(), 1, 2 * 4 * 16),  # the weight is larger than the gradient
        (
            (64, 8, 4),
            Replicate(),
            Replicate(),
            2,
            2 * 64 * 8 + 2 * 8 * 4,
        ),  # it is smaller: both products pass the Partial on
    ],
    ids=str,
)
@pytest.mark.parametrize("function", [F.linear, lambda x, w: x @ w.t()], ids=["linear", "matmul"])
def test_products_of_a_partial_gradient_reduce_it_once(function, sizes, of_input, of_weight, n, n_elements):
    n_rows, n_in, n_out = sizes

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        plain = [dense(n_rows, n_in), dense(n_out, n_in)]
        placements = [[of_input], [of_weight]]
        ours = [
            sw.distribute_tensor(x, mesh, p, src_data_rank=None).requires_grad_()
            for x, p in zip(plain, placements, strict=True)
        ]
        theirs = [x.clone().requires_grad_() for x in plain]
        up = dense(n_rows, n_out)
        function(*theirs).backward(up)
        result = function(*ours)
        terms = sw.distribute_tensor(up, mesh, [Partial()], src_data_rank=None)
        with CommDebugMode() as counts:
            gradients = [
                g.redistribute(mesh, p)
                for g, p in zip(torch.autograd.grad(result, ours, terms), placements, strict=True)
            ]
        assert (counts.get_total_counts(), counts.bytes_received()) == (n, n_elements * 8 * 3 // 4)
        for gradient, x in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(gradient.full_tensor(), x.grad)

    run_ranks(4, body)


def test_column_layers_of_one_plain_input_reduce_its_gradient_once():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        dense_layers = [torch.nn.Linear(4, 7).double() for _ in range(3)]
        for i, layer in enumerate(dense_layers):  # threads share torch's generator
            layer.load_state_dict({"weight": dense(7, 4) + i, "bias": dense(7)})
        layers = [
            parallelize_module(copy.deepcopy(layer), mesh, ColwiseParallel(output_layouts=Replicate()))
            for layer in dense_layers
        ]

        def gradients(q, k, v, x, y):
            """Of x and y, which the layers take in turns."""
            x, y = (value.clone().requires_grad_() for value in (x, y))
            once, twice = x * 2, y * 3
            sums = [
                (layer(value) * (i + 1)).sum() for i, (layer, value) in enumerate([(q, once), (k, twice), (v, once)])
            ]
            alone = torch.autograd.grad(sums[0], x, retain_graph=True)[0]
            both = torch.autograd.grad(sum(sums), [x, y])
            return alone, *both

        expected = gradients(*dense_layers, dense(5, 4), dense(2, 4))
        for ours, theirs in zip(gradients(*layers, dense(5, 4), dense(2, 4)), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        x = dense(5, 4).requires_grad_()
        results = sum(layer(x) for layer in layers)
        _, n = counted(lambda: results.sum().backward())
        assert n == 1
        torch.testing.assert_close(x.grad, sum(layer.weight.sum(0) for layer in dense_layers).expand(5, 4))

    run_ranks(3, body)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128], ids=str
)
@pytest.mark.parametrize("placement", ROWS, ids=str)
def test_variances_send_once(placement, dtype):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = (dense(7, 4) + 3).to(dtype)
        if dtype.is_complex:
            x = x * (1 + 2j)
        ours = sw.distribute_tensor(x, mesh, [placement], src_data_rank=None)
        close = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {}
        for function in (torch.var, torch.std, torch.var_mean, torch.std_mean):
            for dims in (0, (0, 1)):
                result, n = counted(lambda function=function, dims=dims: function(ours, dim=dims))
                expected = function(x, dim=dims)
                assert n == 1
                for a, b in zip(result, expected) if isinstance(result, tuple) else [(result, expected)]:
                    torch.testing.assert_close(a.full_tensor(), b, **close)
        many = dense(7, 4000)
        result, n = counted(
            lambda: torch.var(sw.distribute_tensor(many, mesh, [placement], src_data_rank=None), 0).full_tensor()
        )
        assert n == 2
        torch.testing.assert_close(result, many.var(0))

    run_ranks(3, body)


@pytest.mark.parametrize("placement", ROWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_logsumexp_sends_once(placement, dtype):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = (dense(7, 3) * 3).to(dtype)
        if dtype == torch.float64:
            x[:, 1], x[4, 0] = -torch.inf, torch.inf
        ours = sw.distribute_tensor(x, mesh, [placement])
        for dims, keepdim in ((0, True), (0, False), ((0, 1), False)):
            result, n = counted(lambda dims=dims, keepdim=keepdim: torch.logsumexp(ours, dims, keepdim))
            assert n == 1 and result.placements == (Replicate(),)
            torch.testing.assert_close(result.full_tensor(), torch.logsumexp(x, dims, keepdim))
        many = dense(2, 9000)
        given = sw.distribute_tensor(many, mesh, [Shard(0)], src_data_rank=None).requires_grad_()
        result, n = counted(lambda: torch.logsumexp(given, 0))
        assert n == 2  # fewer bytes
        torch.testing.assert_close(result.full_tensor(), torch.logsumexp(many, 0))
        result.sum().backward()
        torch.testing.assert_close(given.grad.full_tensor(), many.softmax(0))

    run_ranks(3, body)


def test_variances_of_dims_that_two_mesh_dims_shard():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        x = dense(7, 5, 3)
        for placements in ([Shard(0), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Replicate()]):
            ours = sw.distribute_tensor(x, mesh, placements, src_data_rank=None)
            for dims in (0, (0, 1), (0, 1, 2), (0, 2)):
                torch.testing.assert_close(torch.var(ours, dims).full_tensor(), x.var(dims))

    run_ranks(4, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("placement", ROWS, ids=str)
def test_topk_of_a_sharded_dim_sends_once(placement, dtype):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = torch.randperm(28, generator=torch.Generator().manual_seed(1)).view(7, 4).to(dtype)
        ours = sw.distribute_tensor(x, mesh, [placement], src_data_rank=None)
        for k in (0, 2, 7):
            (values, indices), n = counted(lambda k=k: ours.topk(k, dim=0))
            expected = x.topk(k, dim=0)
            assert n == (k > 0) and values.dtype == dtype and indices.dtype == torch.int64
            assert torch.equal(values.full_tensor(), expected.values)
            assert torch.equal(x.gather(0, indices.full_tensor()), expected.values)

    run_ranks(3, body)


BEST = [("max", False), ("max", True), ("min", False), ("argmax", False), ("argmin", True)]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool], ids=str
)
@pytest.mark.parametrize("placement", ROWS, ids=str)
def test_the_best_of_a_sharded_dim_sends_once(placement, dtype):
    """In pairs of float64, which hold neither all int64 nor the values of many rows in few bytes."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = (torch.arange(28).view(7, 4) * 5 % 7).to(dtype)  # equal values
        if dtype.is_floating_point:
            x[2, 1], x[5, 1], x[:, 2], x[3, 3] = torch.nan, torch.nan, -torch.inf, torch.inf
        ours = sw.distribute_tensor(x, mesh, [placement], src_data_rank=None)
        for name, keepdim in BEST:
            if dtype == torch.bool and name.startswith("arg"):
                continue
            found, n = counted(lambda name=name, keepdim=keepdim: getattr(ours, name)(0, keepdim=keepdim))
            expected = getattr(x, name)(0, keepdim=keepdim)
            if dtype != torch.int64:
                assert n == 1
            pairs = [(found, expected)] if name.startswith("arg") else zip(found, expected, strict=True)
            for a, b in pairs:
                assert a.dtype == b.dtype
                torch.testing.assert_close(a.full_tensor(), b, equal_nan=True, rtol=0, atol=0)

    run_ranks(3, body)


@pytest.mark.parametrize("select", [lambda x: x.max(0), lambda x: x.min(0, keepdim=True), lambda x: x.topk(2, 0)])
@pytest.mark.parametrize("placement", [*ROWS, Shard(1), Replicate()], ids=str)
def test_the_gradient_of_selected_values_has_the_layout_of_their_source(placement, select):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        theirs = dense(7, 4).requires_grad_()
        ours = sw.distribute_tensor(theirs.detach(), mesh, [placement], src_data_rank=None).requires_grad_()
        values, expected = select(ours).values, select(theirs).values
        up = torch.autograd.grad(expected.square().sum(), theirs, create_graph=True)[0]
        own = values.square().sum().redistribute(placements=[Replicate()])
        (gradient,), n = counted(lambda: torch.autograd.grad(own, ours, create_graph=True))
        assert n == 0 and gradient.placements == (placement,)
        torch.testing.assert_close(gradient.full_tensor(), up)
        again = torch.autograd.grad(gradient.square().sum(), ours)[0]
        torch.testing.assert_close(again.full_tensor(), torch.autograd.grad(up.square().sum(), theirs)[0])

    run_ranks(3, body)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("placement", COLUMNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_backward_of_losses_of_sharded_classes_sends_nothing(dtype, placement, reduction):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        classes = torch.tensor([3, 9, 0, -100, 4, 4, 8])
        theirs = dense(7, 10).to(dtype).requires_grad_()
        ours = sw.distribute_tensor(theirs.detach(), mesh, [placement], src_data_rank=None).requires_grad_()
        targets = sw.distribute_tensor(classes, mesh, [Replicate()])
        expected = F.cross_entropy(theirs, classes, reduction=reduction)
        loss = F.cross_entropy(ours, targets, reduction=reduction)
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(loss.full_tensor(), expected, **close)
        up = torch.ones_like(expected)
        _, n = counted(lambda: loss.backward(replicas(up, mesh), retain_graph=True))
        assert n == 0
        expected.backward(up, retain_graph=True)
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, **close)
        if dtype is torch.float64:
            first = torch.autograd.grad(loss.sum(), ours, create_graph=True)[0]
            of_first = torch.autograd.grad(expected.sum(), theirs, create_graph=True)[0]
            second = torch.autograd.grad(first.square().sum(), ours)[0]
            torch.testing.assert_close(second.full_tensor(), torch.autograd.grad(of_first.square().sum(), theirs)[0])

    run_ranks(3, body)


def test_what_distribute_tensor_compares_is_not_counted():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        with CommDebugMode() as counts:
            tensor = sw.distribute_tensor(dense(7, 4), mesh, [Shard(0)])
        assert "all_gather" not in {str(name) for name in counts.get_comm_counts()}
        assert torch.equal(tensor.full_tensor(), dense(7, 4))
        for other in (torch.ones(7), torch.ones(7, 4), torch.ones(4, 7, dtype=torch.float64)):
            with pytest.raises(ValueError, match="Give the same shape, dtype and kind"):
                sw.distribute_tensor(other if rank == 2 else dense(7, 4), mesh, [Shard(0)])

    run_ranks(3, body)


def test_what_lookups_of_equal_ids_compare_is_not_counted():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        weight = dense(7, 4)
        table = sw.distribute_tensor(weight, mesh, [Shard(0)])
        ids = torch.tensor([[6, 0], [3, 6]])
        with sw.lookup_exchange("all_to_all"):
            rows, n_looking_up = counted(lambda: F.embedding(replicas(ids, mesh), table))
            full, n_fetching = counted(rows.full_tensor)
            assert (n_looking_up, n_fetching) == (0, 1) and torch.equal(full, F.embedding(ids, weight))
            with pytest.raises(ValueError, match="replicated ids differ between ranks 0 and 2"):
                F.embedding(replicas(ids + (rank == 2), mesh) % 7, table)
            with pytest.raises(IndexError, match="id 7 is no row of the table"):
                F.embedding(replicas(ids + 1, mesh), table)

    run_ranks(3, body)


def replicas(x, mesh):
    return sw.DTensor.from_local(x, mesh, [Replicate()])


PARTS = [[Shard(0)], [Shard(0, sizes=[1, 0, 6])], [Replicate()], [Partial()]]


@pytest.mark.parametrize("placements", PARTS, ids=str)
def test_equal_sends_one_number(placements):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = dense(7, 4).round()
        other = x.clone()
        other[6, 3] += 1
        ours = sw.distribute_tensor(x, mesh, placements)
        for values in (x, other):
            for with_ours in ([Shard(0)], placements):
                theirs = sw.distribute_tensor(values, mesh, with_ours)
                assert torch.equal(ours, theirs) == torch.equal(x, values)
                assert torch.equal(theirs, ours) == torch.equal(x, values)
        same = ours.clone()
        is_equal, n = counted(lambda: torch.equal(ours, same))
        assert is_equal and (n <= 1 or placements == [Partial()])
        assert not torch.equal(ours, ours[:3]) and not torch.equal(ours * float("nan"), ours * float("nan"))
        assert torch.equal(ours[:0], same[:0]) and torch.equal(ours, ours.float())
        with pytest.raises(ValueError, match="next to a DTensor"):
            torch.equal(ours, x)

    run_ranks(3, body)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "linalg__powsum"), reason="torch 2.11 has no such operator")
@pytest.mark.parametrize("placement", [*ROWS, Replicate(), Partial()], ids=str)
def test_sums_of_powers_stay_partial(placement):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = dense(7, 3)
        ours = sw.distribute_tensor(x, mesh, [placement])
        for power in (0.5, 1, 2, 3.0):
            result, n = counted(lambda power=power: torch.ops.aten.linalg__powsum(ours, power))
            assert n == placement.is_partial()
            assert result.placements == ((Partial(),) if placement.is_shard() else (Replicate(),))
            torch.testing.assert_close(result.full_tensor(), (x.abs() ** power).sum())
            rows = torch.ops.aten.linalg__powsum(ours, power, [1], True)
            torch.testing.assert_close(rows.full_tensor(), (x.abs() ** power).sum(1, keepdim=True))
            for each in torch.ops.aten._foreach_powsum([ours, ours], power):
                torch.testing.assert_close(each.full_tensor(), (x.abs() ** power).sum())

    run_ranks(3, body)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_mean_of_losses_of_replicated_targets_sends_nothing(dtype, has_weight, smoothing):
    """Nor does its backward. Targets that are sharded send the sum of their weights, which also tells all ranks of a bad target."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        scores, classes = dense(7, 10).to(dtype), torch.tensor([3, 9, 0, -100, 4, 4, 8])
        weight = dense(10).abs().to(dtype) if has_weight else None
        theirs = scores.clone().requires_grad_()
        expected = F.cross_entropy(theirs, classes, weight, label_smoothing=smoothing)
        expected.backward()
        for of_targets, expected_count in ((Replicate(), 0), (Shard(0), 1 if smoothing == 0 else 2)):
            ours = sw.distribute_tensor(scores, mesh, [Shard(0)]).requires_grad_()
            targets = sw.distribute_tensor(classes, mesh, [of_targets])
            of_ours = None if weight is None else sw.distribute_tensor(weight, mesh, [Replicate()])
            result, n = counted(
                lambda ours=ours, targets=targets, of_ours=of_ours: F.cross_entropy(
                    ours, targets, of_ours, label_smoothing=smoothing
                )
            )
            assert n == expected_count and result.placements == (Partial(),)
            _, n = counted(result.backward)
            assert n == 0
            torch.testing.assert_close(result.full_tensor(), expected)
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)

    run_ranks(3, body)


@pytest.mark.parametrize(
    ("equation", "of_weight"),
    [("bsd,de->bse", (6, 5)), ("bsd,dhe->bhse", (6, 2, 5)), ("bsd,dhe->bshe", (6, 2, 5)), ("bshd,hde->bse", (3, 2, 5))],
)
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Shard(2)], ids=str)
def test_einsum_of_sharded_tokens_sends_nothing(equation, of_weight, placement):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x, weight = dense(4, 5, *of_weight[: equation.index(",") - 2]), dense(*of_weight)
        ours, ours_weight = (
            sw.distribute_tensor(each, mesh, [by]).requires_grad_()
            for each, by in ((x, placement), (weight, Replicate()))
        )
        result, n = counted(lambda: torch.einsum(equation, ours, ours_weight))
        expected = torch.einsum(equation, x.requires_grad_(), weight.requires_grad_())
        assert n == 0
        torch.testing.assert_close(result.full_tensor(), expected)
        assert result.stride() == expected.stride()
        expected.square().sum().backward()
        result.square().sum().backward()
        torch.testing.assert_close(ours.grad.full_tensor(), x.grad)
        torch.testing.assert_close(ours_weight.grad.full_tensor(), weight.grad)

    run_ranks(3, body)
