"""BlockShard: blocks of a dim dealt without being cut, against the dense tensor."""

import copy
import io
import itertools
import pickle
from math import prod

import pytest
import torch
import torch.distributed.checkpoint as dcp

import shardwise as sw
from shardwise import (
    BlockShard,
    CommDebugMode,
    EnumerableShard,
    Layout,
    Partial,
    RaggedShard,
    Replicate,
    Shard,
    ShardMetadata,
)
from shardwise.testing import run_ranks


def dense_of(shape):
    return torch.arange(prod(shape), dtype=torch.float64).view(shape) % 23 - 5


# length, block, sizes of the parts
@pytest.mark.parametrize(
    ("length", "block", "sizes"),
    [
        (10, 4, (8, 2)),
        (10, 4, (4, 4, 2, 0)),
        (10, 1, (3, 3, 3, 1)),
        (3, 4, (3, 0)),
        (0, 4, (0, 0)),
        (16, 4, (8, 8)),
    ],
)
def test_blocks_are_dealt_whole(length, block, sizes):
    layout = Layout((length, 2), (len(sizes),), [BlockShard(0, block)])
    assert tuple(layout.boxes(rank)[0][1][0] for rank in layout.ranks) == sizes
    assert layout.placements[0].sizes == sizes


def test_a_placement_is_a_shard_with_a_block():
    blocks = BlockShard(0, block=64)
    assert isinstance(blocks, Shard) and blocks.is_shard() and blocks.is_shard(0) and not blocks.is_shard(1)
    assert (blocks.dim, blocks.block, blocks.sizes) == (0, 64, None)
    assert repr(blocks) == "BlockShard(0, block=64)"
    for same in (pickle.loads(pickle.dumps(blocks)), copy.deepcopy(blocks), eval(repr(blocks), vars(sw))):
        assert type(same) is BlockShard and same == blocks and hash(same) == hash(blocks)
    assert len({blocks, BlockShard(0, 32), BlockShard(1, 64), Shard(0), Shard(0, sizes=[64, 64])}) == 5
    with pytest.raises(ValueError, match=r"BlockShard\(0, block=0\) is below 1.*Use 1 or more"):
        BlockShard(0, 0)
    with pytest.raises(IndexError, match="does not exist"):
        Layout((4,), (2,), [BlockShard(1, 2)])
    parts, padding = BlockShard(0, 4)._split_tensor(torch.arange(10), 2)
    assert [part.tolist() for part in parts] == [[*range(8)], [8, 9, *[0] * 6]] and padding == [0, 6]


OPERATORS = {
    "pointwise": lambda x: (x * 2 + 1).sigmoid() * x,
    "sum": lambda x: x.sum(),
    "sum of the dim": lambda x: x.sum(0),
    "mean of the other": lambda x: x.mean(1),
    "matmul": lambda x: x.t() @ x,
    "matmul of rows": lambda x: x @ x.t(),
    "softmax": lambda x: x.softmax(0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (6,)),
    "argmax": lambda x: x.argmax(0),
    "var": lambda x: x.var(0),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0)[0],
    "cat": lambda x: torch.cat([x, x]),
    "cat of the other": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x + 1]),
    "slice": lambda x: x[1:9:2, 1:],
    "select": lambda x: x[3],
    "view": lambda x: x.view(10, 3, 2),
    "flat": lambda x: x.reshape(-1),
    "transpose": lambda x: x.t().contiguous(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.expand(3, *x.shape),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(2, 0),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 0, 2, 1)),
    "diagonal": lambda x: x.diagonal(1),
    "tril": lambda x: x.tril(),
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)),
    "index_select": lambda x: x.index_select(0, torch.tensor([3, 0, 9])),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([3, 0, 9, 3]), x),
    "mask": lambda x: x[(x > 2)[:, 0]],
    "chunk": lambda x: torch.cat(x.chunk(3)[1:]),
    "linear": lambda x: torch.nn.functional.linear(x, x),
}
MESHES = {
    "two ranks": ((2,), [BlockShard(0, 4)]),
    "an empty one": ((4,), [BlockShard(0, 4)]),
    "columns": ((4,), [BlockShard(1, 4)]),
    "nested": ((2, 2), [BlockShard(0, 3), BlockShard(0, 3)]),
    "columns besides": ((2, 2), [BlockShard(0, 4), Shard(1)]),
    "under replicas": ((2, 2), [Replicate(), BlockShard(-2, 3)]),
}


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_and_their_gradients(name, mesh_name):
    call, a = OPERATORS[name], dense_of((10, 6)) + torch.linspace(0, 0.3, 60, dtype=torch.float64).view(10, 6)
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

    run_ranks(prod(shape), body)


# the dim stays, in its size: the blocks stay, and nothing is sent
KEPT = {
    "pointwise": (lambda x: x * 2 + x, BlockShard(0, 4)),
    "a product of rows": (lambda x: x @ torch.ones(6, 3, dtype=x.dtype), BlockShard(0, 4)),
    "transposed": (lambda x: x.t(), BlockShard(1, 4)),
    "a view of the other dim": (lambda x: x.view(10, 3, 2), BlockShard(0, 4)),
    "a sum of the other dim": (lambda x: x.sum(1), BlockShard(0, 4)),
    "softmax": (lambda x: x.softmax(1), BlockShard(0, 4)),
    "a new dim": (lambda x: x.unsqueeze(0), BlockShard(1, 4)),
    "zeros": (torch.zeros_like, BlockShard(0, 4)),
    "a slice of the dim": (lambda x: x[:9], Shard(0, sizes=[8, 1])),
    "flattened": (lambda x: x.flatten(), Shard(0, sizes=[48, 12])),
}


@pytest.mark.parametrize("name", KEPT)
def test_blocks_stay_where_the_dim_does(name):
    call, placement = KEPT[name]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(dense_of((10, 6)), mesh, [BlockShard(0, 4)])
        with CommDebugMode() as comm, sw.implicit_replication():
            result = call(x)
        assert result.placements == (placement,) and repr(result.placements[0]) == repr(placement)
        assert comm.bytes_received() == 0

    run_ranks(2, body)


def test_other_operands_come_to_the_blocks():
    a, b = dense_of((10, 6)), dense_of((10, 6)).flip(0)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(a, mesh, [BlockShard(0, 4)])
        for other in (Shard(0), Shard(0, sizes=[8, 2]), Shard(1), Replicate(), BlockShard(0, 3), Partial()):
            y = sw.distribute_tensor(b, mesh, [other])
            assert torch.equal((x + y).full_tensor(), a + b) and torch.equal((y + x).full_tensor(), a + b)
            z = x.clone().add_(y)
            assert z.placements == x.placements and torch.equal(z.full_tensor(), a + b)
        y = sw.distribute_tensor(b, mesh, [Shard(0, sizes=[8, 2])])  # the same parts
        with CommDebugMode() as comm:
            x + y
            x.redistribute(placements=[Shard(0, sizes=[8, 2])])
        assert comm.bytes_received() == 0

    run_ranks(2, body)


LAYOUTS = {
    (4,): [
        [BlockShard(0, 4)],
        [BlockShard(0, 3)],
        [BlockShard(1, 4)],
        [BlockShard(0, 100)],
        [Shard(0)],
        [Shard(1)],
        [Shard(0, sizes=[5, 0, 2, 3])],
        [Replicate()],
        [Partial()],
        [Partial("max")],
        [RaggedShard((0, 1), (2, 3, 0, 5))],
        [EnumerableShard([ShardMetadata((0, 0), (10, 1), 2), ShardMetadata((0, 1), (10, 5), 0)])],
    ],
    (2, 2): [
        [BlockShard(0, 4), Replicate()],
        [BlockShard(0, 2), BlockShard(0, 2)],
        [BlockShard(0, 4), Shard(0)],
        [Shard(0), BlockShard(0, 4)],
        [Partial(), BlockShard(1, 4)],
        [BlockShard(1, 4), BlockShard(0, 4)],
        [Shard(0), Shard(0)],
        [Partial(), Partial()],
        [Replicate(), Replicate()],
    ],
}
PAIRS = [(shape, a, b) for shape, layouts in LAYOUTS.items() for a, b in itertools.product(layouts, layouts)]
PAIRS = [pair for pair in PAIRS if "Block" in str(pair)]


@pytest.mark.parametrize(("shape", "source", "target"), PAIRS, ids=str)
def test_values_and_gradients_survive_any_move_there_and_back(shape, source, target):
    x = dense_of((10, 6))
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
        return received

    received = sum(run_ranks(4, body))
    plan = sw.plan_redistribution(Layout((10, 6), shape, source), target, dtype=torch.float64)
    if not any(placement.is_partial() for placement in (*source, *target)):
        assert plan.ratio == 1 and received == plan.bytes_received


def test_local_tensors():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        local = dense_of((10, 3))[8:] if rank else dense_of((10, 3))[:8]
        x = sw.DTensor.from_local(local, mesh, [BlockShard(0, 4)], shape=(10, 3))
        assert torch.equal(x.full_tensor(), dense_of((10, 3))) and x.placements == (BlockShard(0, 4),)
        even = sw.DTensor.from_local(torch.ones(8, 3), mesh, [BlockShard(0, 4)])
        assert even.shape == (16, 3) and even.placements == (BlockShard(0, 4),)
        with pytest.raises(ValueError, match="gives a piece of shape"):
            sw.DTensor.from_local(torch.ones(5, 3), mesh, [BlockShard(0, 4)], shape=(10, 3))

    run_ranks(2, body)


def test_optimizers_step_as_on_plain_parameters():
    def train(parameter):
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (parameter.t() @ parameter).pow(2).mean().backward()
            optimizer.step()
        return parameter.detach()

    expected = train(torch.nn.Parameter(dense_of((10, 6))))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        parameter = torch.nn.Parameter(sw.distribute_tensor(dense_of((10, 6)), mesh, [BlockShard(0, 4)]))
        result = train(parameter)
        assert result.placements == parameter.grad.placements == (BlockShard(0, 4),)
        torch.testing.assert_close(result.full_tensor(), expected)

    run_ranks(4, body)


def test_fully_sharded_parameters_keep_their_blocks_whole():
    torch.manual_seed(0)
    plain = torch.nn.Linear(6, 10).double()
    x = dense_of((8, 6))
    plain(x).square().sum().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = sw.fsdp.fully_shard(
            copy.deepcopy(plain).requires_grad_(), mesh=mesh, shard_placement_fn=lambda parameter: BlockShard(0, 4)
        )
        model.zero_grad()
        assert model.weight.placements == (BlockShard(0, 4),)
        assert model.weight.to_local().shape == ((4, 4, 2, 0)[rank], 6)
        model(x).square().sum().backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad.full_tensor(), other.grad)

    run_ranks(4, body)


def test_random_values_do_not_depend_on_the_blocks():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        values = []
        for placement in (Replicate(), BlockShard(0, 4), BlockShard(1, 2)):
            torch.manual_seed(3)
            values.append(sw.randn(10, 6, device_mesh=mesh, placements=[placement]).full_tensor())
        assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])

    run_ranks(4, body)


def test_checkpoints_load_under_other_layouts(tmp_path):
    x = dense_of((10, 6))

    def save(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        dcp.save({"w": sw.distribute_tensor(x, mesh, [BlockShard(0, 4)])}, checkpoint_id=tmp_path, no_dist=True)

    run_ranks(1, save)

    def load(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for placement in (BlockShard(0, 4), BlockShard(1, 5), Shard(0), Replicate()):
            loaded = sw.zeros(10, 6, device_mesh=mesh, placements=[placement], dtype=torch.float64)
            dcp.load({"w": loaded}, checkpoint_id=tmp_path, no_dist=True)
            assert torch.equal(loaded.full_tensor(), x) and loaded.placements == (placement,)

    run_ranks(4, load)


def test_a_tensor_is_pickled_and_copied():
    x = dense_of((10, 6))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        y = sw.distribute_tensor(x, mesh, [BlockShard(0, 4)])
        file = io.BytesIO()
        torch.save(y, file)
        file.seek(0)
        for other in (torch.load(file, weights_only=True), copy.deepcopy(y)):
            assert other.placements == y.placements and torch.equal(other.full_tensor(), x)
            assert repr(other.placements) == "(BlockShard(0, block=4),)"

    run_ranks(4, body)


def test_pictures_show_blocks():
    layout = Layout((10, 6), (4,), [BlockShard(0, 4)])
    text = sw.debug.picture(layout).draw()
    assert text.startswith("[10, 6] as [BlockShard(0, block=4)] on 4 ranks")
    assert "rank 0" in text and "rank 2" in text and "imbalance 1.60" in text
    assert "<svg" in sw.debug.picture(layout).draw("svg")
