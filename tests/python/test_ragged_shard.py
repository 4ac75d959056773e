"""RaggedShard: ranges of flattened leading dims, one buffer per rank, against the dense tensor."""

import copy
import io
import itertools
import pickle
from math import prod

import pytest
import torch
import torch.distributed.checkpoint as dcp

import shardwise as sw
from shardwise import CommDebugMode, EnumerableShard, Layout, Partial, RaggedShard, Replicate, Shard, ShardMetadata
from shardwise.testing import run_ranks

UNITS = (2, 3, 0, 5)
# shape, dims, units of four ranks
RANGES = [
    ((20,), (0,), UNITS),
    ((7, 5), (0,), UNITS),
    ((7, 5), (0, 1), UNITS),
    ((3, 4, 5), (0, 1), (1, 1, 1, 1)),
    ((3, 4, 5), (0, 1, 2), (7, 0, 11, 5)),
    ((2, 1, 3, 2), (0, 1, 2), (1, 3, 1, 1)),
    ((1, 2), (0, 1), (1, 1, 1, 1)),  # fewer elements than ranks
    ((4, 6), (0, 1), (0, 0, 1, 0)),  # all on one rank
    ((0, 5), (0, 1), UNITS),
    ((5, 0), (0,), UNITS),
]
by_range = {"argnames": ("shape", "dims", "units"), "argvalues": RANGES, "ids": str}


def dense_of(shape):
    return torch.arange(prod(shape), dtype=torch.float64).view(shape) % 23 - 5


def bounds(length, units):
    return [length * sum(units[:i]) // sum(units) for i in range(len(units) + 1)]


def own_range(x, dims, units, rank):
    """What the rank holds, of the dense tensor."""
    flat = x.reshape(prod(x.shape[: len(dims)]), *x.shape[len(dims) :])
    begin, end = bounds(len(flat), units)[rank : rank + 2]
    return flat[begin:end]


@pytest.mark.parametrize(**by_range)
def test_ranges_tile_the_tensor_in_the_order_of_memory(shape, dims, units):
    layout = Layout(shape, (4,), [RaggedShard(dims, units)])
    x = dense_of(shape)
    for rank in range(4):
        boxes = layout.boxes(rank)
        pieces = [x[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].flatten() for box in boxes]
        held = torch.cat([*pieces, x.new_empty(0)])
        assert torch.equal(held, own_range(x, dims, units, rank).flatten())
        assert len(boxes) <= 2 * len(dims) - 1


@pytest.mark.parametrize(**by_range)
def test_the_local_tensor_is_one_buffer(shape, dims, units):
    x = dense_of(shape)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        y = sw.distribute_tensor(x, mesh, [RaggedShard(dims, units)])
        assert y.placements == (RaggedShard(dims, units),) and y.shape == x.shape and y.is_contiguous()
        expected = own_range(x, dims, units, rank)
        local = y.to_local()
        assert local.is_contiguous() and local.shape == expected.shape and torch.equal(local, expected)
        assert torch.equal(y._local_tensor, expected)
        local.mul_(2)  # the same memory
        assert torch.equal(y.full_tensor(), 2 * x)
        y.add_(1)
        assert torch.equal(local, 2 * expected + 1)

    run_ranks(4, body)


POINTWISE = {
    "a number": lambda x, y, z: x * 2 + 1,
    "alike": lambda x, y, z: x.sigmoid() * y - y / 3,
    "otherwise laid out": lambda x, y, z: torch.where(x > 2, z, x),
    "broadcast": lambda x, y, z: x + z[..., :1] * z.sum(),
    "clone": lambda x, y, z: x.clone(),
    "channels last": lambda x, y, z: x.clone(memory_format=torch.preserve_format).contiguous(),
    "like": lambda x, y, z: torch.zeros_like(x) + torch.ones_like(x),
    "dtype": lambda x, y, z: x.float().double(),
    "out of place list": lambda x, y, z: torch._foreach_add(torch._foreach_mul([x, y], 3), [y, x])[1],
}


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize(**by_range)
def test_pointwise_operators_keep_the_layout_and_one_buffer(name, shape, dims, units):
    call, a = POINTWISE[name], dense_of(shape)
    b, c = a.flip(0) + 1, a * a - 3
    expected = call(a, b, c)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ragged = [RaggedShard(dims, units)]
        x, y = (sw.distribute_tensor(each, mesh, ragged) for each in (a, b))
        result = call(x, y, sw.distribute_tensor(c, mesh, [Shard(0)]))
        assert result.placements == tuple(ragged)
        local = result.to_local()
        assert local.is_contiguous() and torch.equal(local, own_range(expected, dims, units, rank))
        local.fill_(7)
        assert (result.full_tensor() == 7).all()

    run_ranks(4, body)


def test_pointwise_operators_send_nothing_and_run_once_per_rank():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        x = sw.distribute_tensor(dense_of((7, 5)), mesh, [RaggedShard((0, 1), UNITS)])
        with CommDebugMode() as comm:
            (x * 2 + x).sigmoid_().add_(x)
        assert comm.bytes_received() == 0

    run_ranks(4, body)


IN_PLACE = {
    "copy_": lambda x, y: x.copy_(y),
    "fill_": lambda x, y: x.fill_(3),
    "add_": lambda x, y: x.add_(y, alpha=2),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "a slice": lambda x, y: x[1:].mul_(2),
    "a select": lambda x, y: x[2].copy_(y[0]),
    "a view": lambda x, y: x.view(-1).sub_(1),
    "a transpose": lambda x, y: x.t().mul_(y.t()),
    "an index": lambda x, y: x.__setitem__((torch.tensor([0, 2]), torch.tensor([1, 3])), 9.0),
    "a mask": lambda x, y: x.masked_fill_(y > 3, -1),
    "foreach": lambda x, y: torch._foreach_add_([x], [y]),
    "zero_": lambda x, y: x.zero_(),
}


@pytest.mark.parametrize("other", [RaggedShard((0, 1), (1, 0, 2, 4)), Shard(1), Replicate()], ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_in_place_and_through_views(name, other):
    a, b = dense_of((7, 5)), dense_of((7, 5)).flip(1)
    expected = a.clone()
    IN_PLACE[name](expected, b)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        x = sw.distribute_tensor(a, mesh, [RaggedShard((0, 1), UNITS)])
        local = x.to_local()
        IN_PLACE[name](x, sw.distribute_tensor(b, mesh, [other]))
        assert torch.equal(x.full_tensor(), expected)
        assert torch.equal(local, own_range(expected, (0, 1), UNITS, rank))

    run_ranks(4, body)


OPERATORS = {
    "sum": lambda x: x.sum(),
    "sum of a dim": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(),
    "norm": lambda x: x.norm(),
    "matmul": lambda x: x.t() @ x,
    "softmax": lambda x: x.softmax(-1),
    "argmax": lambda x: x.argmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x + 1]),
    "view": lambda x: x.view(-1),
    "dims in their order": lambda x: x.transpose(1, 1) * x.permute(0, 1) * x.clone().transpose_(0, 0),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "expand": lambda x: x.expand(3, *x.shape),
    "select": lambda x: x[2],
    "slice": lambda x: x[1:6:2, 1:],
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(2, 0),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "diagonal": lambda x: x.diagonal(),
    "tril": lambda x: x.tril(),
    "sort": lambda x: x.sort(0)[0],
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)),
    "index_select": lambda x: x.index_select(0, torch.tensor([3, 0, 3])),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([3, 0, 3]), x),
    "nonzero": lambda x: x.nonzero(),
    "chunk": lambda x: torch.cat(x.chunk(3)[1:]),
    "var": lambda x: x.var(1),
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (5,)),
}
MESHES = {
    "1-D": ((4,), [RaggedShard((0, 1), UNITS)]),
    "replicated": ((2, 2), [Replicate(), RaggedShard((0, 1), (3, 4))]),
    "columns besides": ((2, 2), [RaggedShard((0,), (3, 1)), Shard(1)]),
    "rows besides": ((2, 2), [RaggedShard((0, 1), (3, 1)), Shard(0)]),
}


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_and_their_gradients(name, mesh_name):
    call, a = OPERATORS[name], dense_of((7, 5)) + torch.linspace(0, 0.3, 35, dtype=torch.float64).view(7, 5)
    plain = a.clone().requires_grad_()
    expected = call(plain)
    is_differentiable = expected.is_floating_point()
    weights = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view(expected.shape)
    if is_differentiable:
        (expected * weights).sum().backward()
    shape, placements = MESHES[mesh_name]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        x = sw.distribute_tensor(a, mesh, placements).requires_grad_()
        with sw.implicit_replication():
            result = call(x)
            torch.testing.assert_close(result.full_tensor(), expected)
            if is_differentiable:
                (result * weights).sum().backward()
                torch.testing.assert_close(x.grad.full_tensor(), plain.grad)

    run_ranks(4, body)


LAYOUTS = {
    (4,): [
        [RaggedShard((0, 1), UNITS)],
        [RaggedShard((0, 1), (0, 0, 1, 0))],
        [RaggedShard((0,), (1, 1, 3, 1))],
        [Shard(0)],
        [Shard(1)],
        [Shard(0, sizes=[5, 0, 2, 0])],
        [Replicate()],
        [Partial()],
        [Partial("max")],
        [EnumerableShard([ShardMetadata((0, 0), (7, 1), 2), ShardMetadata((0, 1), (7, 4), 0)])],
    ],
    (2, 2): [
        [RaggedShard((0, 1), (3, 4)), Replicate()],
        [Replicate(), RaggedShard((0, 1), (2, 5))],
        [RaggedShard((0, 1), (2, 1)), Shard(0)],
        [RaggedShard((0,), (2, 1)), Shard(1, sizes=[4, 1])],
        [Shard(1), RaggedShard((0, 1), (1, 2))],
        [RaggedShard((0, 1), (2, 1)), Partial()],
        [Shard(0), Shard(0)],
        [Partial(), Shard(1)],
        [Partial(), Partial()],
        [Replicate(), Replicate()],
    ],
}
PAIRS = [(shape, a, b) for shape, layouts in LAYOUTS.items() for a, b in itertools.product(layouts, layouts)]
PAIRS = [pair for pair in PAIRS if "Ragged" in str(pair)]


@pytest.mark.parametrize(("shape", "source", "target"), PAIRS, ids=str)
def test_values_and_gradients_survive_any_move_there_and_back(shape, source, target):
    x = dense_of((7, 5))
    weights = x.flip(0) - 3

    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        y = sw.distribute_tensor(x, mesh, source).requires_grad_()
        with CommDebugMode() as comm:
            moved = y.redistribute(placements=target)
        received = comm.bytes_received()
        assert list(moved.placements) == target
        assert torch.equal(moved.full_tensor(), x)
        back = moved.redistribute(placements=source)
        assert torch.equal(back.full_tensor(), x)
        (back.full_tensor() * weights).sum().backward()
        assert torch.equal(y.grad.full_tensor(), weights)
        later = y.redistribute(placements=target, async_op=True)
        assert torch.equal(later.full_tensor(), x)
        return received

    received = sum(run_ranks(4, body))
    plan = sw.plan_redistribution(Layout((7, 5), shape, source), target, dtype=torch.float64)
    if not any(placement.is_partial() for placement in (*source, *target)):
        assert plan.ratio == 1 and received == plan.bytes_received
    if len(shape) == 1:
        assert plan.ratio == 1


def test_a_reduction_into_ranges_is_at_its_bound():
    layout = Layout((6, 8), (4,), [Partial()])
    plan = sw.plan_redistribution(layout, [RaggedShard((0, 1), UNITS)])
    assert plan.route == "reduce-scatter" and plan.bytes_received == plan.bound == 3 * 48 * 4


def test_between_meshes_and_outside_of_them():
    x = dense_of((3, 7))

    def body(rank):
        half = sw.DeviceMesh("cpu", [3, 1])
        y = sw.distribute_tensor(x, half, [RaggedShard((0, 1), (1, 2))])
        if rank in (0, 2):
            assert y.to_local().numel() == 0
        z = y.redistribute(sw.init_device_mesh("cpu", (2, 2)), [Shard(0), RaggedShard((0, 1), (2, 3))])
        assert torch.equal(z.full_tensor(), x) and torch.equal(
            (z * 2).redistribute(half, [Replicate()]).to_local(), x * 2
        ) == (rank in (1, 3))

    run_ranks(4, body)


OPTIMIZERS = {
    "SGD": lambda p, **form: torch.optim.SGD(p, lr=0.1, momentum=0.9, **form),
    "Adam": lambda p, **form: torch.optim.Adam(p, lr=0.1, **form),
    "AdamW": lambda p, **form: torch.optim.AdamW(p, lr=0.1, amsgrad=True, **form),
    "Adagrad": lambda p, **form: torch.optim.Adagrad(p, lr=0.1, **form),
}
LOSSES = {
    "alike": lambda p: p.square().sum(),
    "replicated": lambda p: (p * 2).sum(),
    "Partial": lambda p: (p.t() @ p).pow(2).mean(),
}


@pytest.mark.parametrize("form", ["fused", "foreach", ""])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_plain_parameters(name, loss, form):
    options = {form: True} if form else {"foreach": False}

    def train(parameters):
        optimizer = OPTIMIZERS[name](parameters, **options)
        for _ in range(3):
            optimizer.zero_grad()
            sum(LOSSES[loss](parameter) for parameter in parameters).backward()
            optimizer.step()
        return parameters

    values = [torch.linspace(-2, 1, 42, dtype=torch.float64).view(6, 7), torch.linspace(0, 1, 10).double().view(2, 5)]
    expected = train([torch.nn.Parameter(value.clone()) for value in values])

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ragged = [RaggedShard((0, 1), UNITS)]
        parameters = [torch.nn.Parameter(sw.distribute_tensor(value, mesh, ragged)) for value in values]
        buffers = [parameter.detach().to_local() for parameter in parameters]
        for ours, theirs, buffer in zip(train(parameters), expected, buffers, strict=True):
            assert ours.placements == tuple(ragged)
            torch.testing.assert_close(ours.detach().full_tensor(), theirs.detach())
            assert torch.equal(buffer, ours.detach().to_local())

    run_ranks(4, body)


def test_clipping_and_norms():
    x = dense_of((7, 5))
    plain = torch.nn.Parameter(x.clone())
    plain.grad = x.clone()
    norm = torch.nn.utils.clip_grad_norm_([plain], 1.0)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        parameter = torch.nn.Parameter(sw.distribute_tensor(x, mesh, [Replicate(), RaggedShard((0, 1), (2, 3))]))
        parameter.grad = parameter.detach().clone()
        found = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        torch.testing.assert_close(found.full_tensor(), norm)
        torch.testing.assert_close(parameter.grad.full_tensor(), plain.grad)

    run_ranks(4, body)


def test_gradients_cross_from_local_and_to_local():
    x, weights = dense_of((3, 5)), torch.linspace(0, 1, 15, dtype=torch.float64).view(3, 5)
    dims = (0, 1)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ragged = [RaggedShard(dims, UNITS)]
        local = own_range(x, dims, UNITS, rank).clone().requires_grad_()
        y = sw.DTensor.from_local(local, mesh, ragged, shape=(3, 5), stride=(5, 1))
        (y.square().full_tensor() * weights).sum().backward()
        torch.testing.assert_close(local.grad, own_range(2 * x * weights, dims, UNITS, rank))
        z = sw.distribute_tensor(x, mesh, ragged).requires_grad_()
        (z.to_local().pow(3) * own_range(weights, dims, UNITS, rank)).sum().backward()
        assert z.grad.placements == tuple(ragged)
        torch.testing.assert_close(z.grad.full_tensor(), 3 * x * x * weights)
        (again,) = torch.autograd.grad(z.to_local().sum(), z)  # a gradient that is expanded
        assert torch.equal(again.full_tensor(), torch.ones_like(x))

    run_ranks(4, body)


def test_terms_of_a_sum_stay_terms():
    """What replicated data parallelism does with gradients: they are added up before they are reduced."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        placements = [Partial(), RaggedShard((0, 1), (2, 3))]
        local = torch.full((6 if rank % 2 == 0 else 9,), 1.0 + rank)
        x = sw.DTensor.from_local(local, mesh, placements, shape=(3, 5))
        with CommDebugMode() as comm:
            y = (x + x) * 2
            y.add_(x)
        assert y.placements == tuple(placements) and comm.bytes_received() == 0
        with CommDebugMode() as comm:
            whole = y.redistribute(placements=[Replicate(), RaggedShard((0, 1), (2, 3))])
        assert sum(comm.get_comm_counts().values()) == 1  # one buffer, one message
        return whole.full_tensor()

    for found in run_ranks(4, body):
        assert torch.equal(found.flatten(), torch.tensor([20.0] * 6 + [30.0] * 9))


def test_parameters_of_a_group_share_one_buffer():
    """Ranges of several tensors, laid out one after another in memory of the program: no copy into it or out of it."""
    shapes = [(4, 6), (5,), (3, 2, 2)]
    sizes = [prod(shape) for shape in shapes]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        total = sum(sizes)
        ends = [total * i // 4 for i in range(5)]  # even ranges of the whole buffer
        buffer = torch.zeros(ends[rank + 1] - ends[rank])
        parameters, begin = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            units = [max(0, min(b, begin + size) - max(a, begin)) for a, b in itertools.pairwise(ends)]
            first = max(begin, ends[rank]) - ends[rank] if units[rank] else 0
            dims = tuple(range(len(shape)))
            view = buffer[first : first + units[rank]]
            parameters.append(sw.DTensor.from_local(view, mesh, [RaggedShard(dims, units)], shape=shape))
            begin += size
        for i, parameter in enumerate(parameters):
            if (local := parameter.to_local()).numel() > 0:
                assert local.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
            parameter.fill_(i + 1)
        expected = torch.cat([torch.full((size,), i + 1.0) for i, size in enumerate(sizes)])
        assert torch.equal(buffer, expected[ends[rank] : ends[rank + 1]])
        optimizer = torch.optim.Adam([torch.nn.Parameter(parameter) for parameter in parameters], fused=True)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert (buffer < expected[ends[rank] : ends[rank + 1]]).all()

    run_ranks(4, body)


def test_a_written_local_tensor_counts_as_a_write():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(torch.ones(3, 3), mesh, [RaggedShard((0, 1), (4, 5))]).requires_grad_()
        y = x * 2
        loss = y.square().sum()
        with torch.no_grad():
            y.to_local().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    run_ranks(2, body)


def test_random_values_and_initialisation_do_not_depend_on_the_ranges():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        found = []
        for placement in (Replicate(), RaggedShard((0, 1), UNITS), RaggedShard((0,), (0, 1, 0, 2))):
            torch.manual_seed(3)
            x = sw.rand(7, 5, device_mesh=mesh, placements=[placement])
            torch.nn.init.kaiming_uniform_(y := torch.zeros_like(x))
            found.append((x.full_tensor(), y.full_tensor(), torch.nn.functional.dropout(x, 0.5).full_tensor()))
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))

    run_ranks(4, body)


def test_checkpoints_load_into_ranges(tmp_path):
    """test_checkpoint.py has those that several ranks save."""
    x = dense_of((7, 5))

    def save(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        saved = sw.distribute_tensor(x, mesh, [RaggedShard((0, 1), (1,))])
        dcp.save({"w": saved}, checkpoint_id=tmp_path, no_dist=True)

    run_ranks(1, save)

    def load(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for placement in (RaggedShard((0, 1), UNITS), RaggedShard((0,), (0, 1, 3, 0)), Shard(1), Replicate()):
            loaded = sw.zeros(7, 5, device_mesh=mesh, placements=[placement], dtype=torch.float64)
            local = loaded.to_local()
            dcp.load({"w": loaded}, checkpoint_id=tmp_path, no_dist=True)
            assert torch.equal(loaded.full_tensor(), x) and torch.equal(local, loaded.to_local())

    run_ranks(4, load)


def test_a_tensor_is_pickled_and_copied():
    x = dense_of((7, 5))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        y = sw.distribute_tensor(x, mesh, [RaggedShard((0, 1), UNITS)])
        file = io.BytesIO()
        torch.save(y, file)
        file.seek(0)
        for other in (torch.load(file, weights_only=True), copy.deepcopy(y)):
            assert other.placements == y.placements and torch.equal(other.full_tensor(), x)
            other.to_local().fill_(1)
            assert (other.full_tensor() == 1).all() and torch.equal(y.full_tensor(), x)

    run_ranks(4, body)


def test_values_of_a_placement():
    ragged = RaggedShard(dims=(0, 1), local_units=(2, 3, 0, 5))
    assert (ragged.dims, ragged.local_units) == ((0, 1), (2, 3, 0, 5))
    assert repr(ragged) == "RaggedShard(dims=(0, 1), local_units=(2, 3, 0, 5))"
    assert repr(RaggedShard([0], [1])) == "RaggedShard(dims=(0,), local_units=(1,))"
    same = RaggedShard((0, 1), (4, 6, 0, 10))  # the same proportions
    assert same == ragged and hash(same) == hash(ragged) and same.local_units == (4, 6, 0, 10)
    assert ragged not in (RaggedShard((0,), (2, 3, 0, 5)), RaggedShard((0, 1), (2, 3, 5)), Shard(0), Replicate())
    assert pickle.loads(pickle.dumps(ragged)) == ragged == eval(repr(ragged), vars(sw))
    assert not ragged.is_shard() and not ragged.is_replicate() and not ragged.is_partial()


def test_large_units_do_not_overflow():
    n = 2**40
    layout = Layout((n, 3), (2,), [RaggedShard((0,), (2**61 - 1, 2**61 + 1))])
    (begin, sizes), (second, _) = layout.boxes(0)[0], layout.boxes(1)[0]
    assert begin == [0, 0] and sizes == [n * (2**61 - 1) // 2**62, 3] and second == [sizes[0], 0]


# what is done, the exception's type, its key words
ERRORS = {
    "negative units": (lambda: RaggedShard((0,), (1, -1)), ValueError, r"local_units=\(1, -1\)\) hold a negative"),
    "zero units": (lambda: RaggedShard((0,), (0, 0)), ValueError, "are all zero.*at least one rank"),
    "no units": (lambda: RaggedShard((0,), ()), ValueError, "are empty"),
    "no dims": (lambda: RaggedShard((), (1, 1)), ValueError, r"not the leading dims.*dims=\(0,\)"),
    "other dims": (lambda: RaggedShard((1,), (1, 1)), ValueError, r"not the leading dims.*dims=\(0,\)"),
    "dims in another order": (lambda: RaggedShard((1, 0), (1, 1)), ValueError, r"Use dims=\(0, 1\)"),
    "a dim twice": (lambda: RaggedShard((0, 0), (1, 1)), ValueError, "not the leading dims"),
    "a negative dim": (lambda: RaggedShard((-1,), (1, 1)), ValueError, "not the leading dims"),
    "too many dims": (lambda: Layout((4,), (2,), [RaggedShard((0, 1), (1, 1))]), IndexError, "flattens 2 dims.*has 1"),
    "no dims at all": (lambda: Layout((), (2,), [RaggedShard((0,), (1, 1))]), IndexError, r"Use Replicate\(\)"),
    "too few units": (
        lambda: Layout((4,), (3,), [RaggedShard((0,), (1, 1))]),
        ValueError,
        "2 local_units on mesh dim 0",
    ),
    "twice": (
        lambda: Layout((4,), (2, 2), [RaggedShard((0,), (1, 1)), RaggedShard((0,), (1, 1))]),
        ValueError,
        "several boxes per rank on mesh dims 0 and 1.*a layout can have only one",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_way_out(name):
    call, kind, words = ERRORS[name]
    with pytest.raises(kind, match=words):
        call()


def test_errors_of_local_tensors():
    ragged = [RaggedShard((0, 1), (1, 1))]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        with pytest.raises(ValueError, match=r"Give shape= of the whole"):
            sw.DTensor.from_local(torch.ones(6), mesh, ragged)
        with pytest.raises(ValueError, match=r"piece of shape \[5\], but .* part of shape \[6\]"):
            sw.DTensor.from_local(torch.ones(5), mesh, ragged, shape=(3, 4))
        with pytest.raises(ValueError, match=r"piece of shape \[2, 3\]"):
            sw.DTensor.from_local(torch.ones(2, 3), mesh, ragged, shape=(3, 4))
        with pytest.raises(ValueError, match=r"contiguous memory\. Call contiguous"):
            sw.DTensor.from_local(torch.ones(12)[::2], mesh, ragged, shape=(3, 4))
        with pytest.raises(ValueError, match="rank 1 gives a piece of shape"):
            sw.DTensor.from_local(torch.ones(6 - rank), mesh, ragged, shape=(3, 4), run_check=True)
        with pytest.raises(NotImplementedError, match="sparse"):
            sw.DTensor.from_local(torch.ones(6).to_sparse(), mesh, ragged, shape=(3, 4))

    run_ranks(2, body)


def test_pictures_show_ranges():
    layout = Layout((4, 5), (4,), [RaggedShard((0, 1), UNITS)])
    text = sw.debug.picture(layout).draw()
    assert text.startswith("[4, 5] as [RaggedShard(dims=(0, 1), local_units=(2, 3, 0, 5))] on 4 ranks")
    assert "rank 0" in text and "rank 3" in text and "imbalance 2.00" in text
    assert "<svg" in sw.debug.picture(layout).draw("svg")


def test_lists_are_written_out_of_place_and_in_place_at_once():
    x, y = dense_of((7, 5)), dense_of((3, 2, 4))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        tensors = [
            sw.distribute_tensor(x, mesh, [RaggedShard((0, 1), UNITS)]),
            sw.distribute_tensor(y, mesh, [RaggedShard((0, 1, 2), (1, 2, 3, 4))]),
        ]
        doubled = torch._foreach_mul(tensors, 2)
        torch._foreach_add_(doubled, tensors)
        norms = torch._foreach_norm(tensors)
        for plain, ours, tripled, norm in zip((x, y), tensors, doubled, norms, strict=True):
            assert tripled.placements == ours.placements and torch.equal(tripled.full_tensor(), 3 * plain)
            torch.testing.assert_close(norm.full_tensor(), plain.norm())

    run_ranks(4, body)


@pytest.mark.parametrize(
    "placement",
    [
        RaggedShard((0, 1), UNITS),
        Shard(1),
        EnumerableShard([ShardMetadata((0, 0), (7, 2), 0), ShardMetadata((0, 2), (7, 3), 2)]),
    ],
    ids=str,
)
def test_lists_beside_tensors_that_are_broadcast(placement):
    x = dense_of((7, 5))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ours = sw.distribute_tensor(x, mesh, [placement])
        for other in (x[:1], x[0], x[:, :1], x[:1, :1], x.sum()):
            beside = sw.distribute_tensor(other.contiguous(), mesh, [Replicate()])
            assert torch.equal(torch._foreach_mul([ours], [beside])[0].full_tensor(), x * other)

    run_ranks(4, body)


@pytest.mark.parametrize(
    "placement", [RaggedShard((0, 1), UNITS), EnumerableShard([ShardMetadata((0, 0), (7, 5), 2)])], ids=str
)
def test_an_expanded_view_sees_what_is_written_to_pieces(placement):
    x = dense_of((7, 5))

    def body(rank):
        ours = sw.distribute_tensor(x, sw.init_device_mesh("cpu", (4,)), [placement])
        view = ours.expand(3, -1, -1)
        ours.mul_(2)
        assert torch.equal(view.full_tensor(), (2 * x).expand(3, -1, -1))

    run_ranks(4, body)


@pytest.mark.parametrize("other", [Replicate(), Partial(), Shard(1)], ids=str)
@pytest.mark.parametrize("lists", [False, True], ids=["operator", "list"])
def test_operands_that_lie_otherwise_in_memory_are_brought_in_a_row(lists, other):
    a, b = dense_of((7, 5)), dense_of((5, 7)).t()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        x = sw.distribute_tensor(a, mesh, [RaggedShard((0, 1), UNITS)])
        y = sw.distribute_tensor(b.t(), mesh, [Shard(0) if other == Shard(1) else other]).t()
        assert list(y.placements) == [other] and y.stride() == b.stride()
        difference = torch._foreach_sub([x], [y])[0] if lists else x - y
        assert torch.equal(difference.full_tensor(), a - b)
        assert torch.equal(y.full_tensor(), b)

    run_ranks(4, body)
