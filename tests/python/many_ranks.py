"""Moves, lookups and training steps on any square number of ranks. Each result is compared with that of plain tensors on one rank."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Partial, RaggedShard, Replicate, Shard
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SHAPE = (100, 37)
TABLE = (101, 6)
WIDTH = 37  # of the layers


def numbers(*shape, seed=0):
    """Whole numbers in float64: sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-50, 50, shape, generator=generator).double()


def uneven(total, n):
    """`total` rows over `n` ranks: several for some, none for many."""
    sizes = [0] * n
    for row in range(total):
        sizes[row * row % n] += 1
    return sizes


def layouts(mesh):
    """The layouts on a mesh of one, two or three dims."""
    n = mesh.size()
    return {
        1: [
            [Shard(0)],
            [Shard(1)],
            [Shard(0, sizes=uneven(SHAPE[0], n))],
            [RaggedShard((0,), uneven(SHAPE[0] // 4, n))],
            [Replicate()],
            [Partial()],
            [Partial("max")],
        ],
        2: [
            [Shard(0), Shard(1)],
            [Shard(0), Shard(0)],
            [Shard(1), Shard(0)],
            [Replicate(), Shard(0)],
            [Shard(1), Replicate()],
            [Partial(), Shard(0)],
            [Replicate(), Partial()],
        ],
        3: [
            [Shard(0), Replicate(), Shard(1)],
            [Replicate(), Shard(0), Shard(0)],
            [Partial(), Shard(1), Replicate()],
        ],
    }[mesh.ndim]


def distributed(dense, mesh, placements):
    """`dense`, which every rank has, without a message. The terms of a sum and of a maximum differ from rank to rank."""
    term, pieces = dense, list(placements)
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            at, n, pieces[dim] = mesh.get_local_rank(dim), mesh.size(dim), Replicate()
            term = dense - (at + 3) % n if placement.reduce_op == "max" else dense * (2 - n if at == 1 else 1)
    local = sw.distribute_tensor(term, mesh, pieces, src_data_rank=None).to_local()
    return sw.DTensor.from_local(local, mesh, placements, run_check=False, shape=dense.shape, stride=dense.stride())


def assert_is(tensor, dense):
    """Compares this rank's pieces. Terms of a reduction are reduced first."""
    if any(placement.is_partial() for placement in tensor.placements):
        tensor = tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)
    expected = distributed(dense, tensor.device_mesh, tensor.placements)
    torch.testing.assert_close(pieces_of(tensor), pieces_of(expected))


def pieces_of(tensor):
    local = tensor.to_local()
    return local.local_shards() if isinstance(local, sw.LocalShardsWrapper) else [local]


def moves(*shape):
    def each_layout_to_each_other():
        mesh, dense = sw.init_device_mesh("cpu", shape), numbers(*SHAPE)
        for source in layouts(mesh):
            tensor = distributed(dense, mesh, source)
            for target in layouts(mesh):
                try:
                    assert_is(tensor.redistribute(placements=target), dense)
                except BaseException as error:
                    error.add_note(f"{source} -> {target}")
                    raise

    return each_layout_to_each_other


def moves_to_other_meshes(n):
    def between_meshes():
        dense, half = numbers(*SHAPE), n // 2
        line, turned = sw.init_device_mesh("cpu", (n,)), sw.DeviceMesh("cpu", list(range(n))[::-1])
        some, others = sw.DeviceMesh("cpu", list(range(half))), sw.DeviceMesh("cpu", list(range(half, n)))
        odd = sw.DeviceMesh("cpu", list(range(n - 5)))
        for source, target in [(line, turned), (line, some), (some, others), (others, odd), (odd, line)]:
            tensor = sw.distribute_tensor(dense, source, [Shard(0)])
            moved = tensor.redistribute(target, [Shard(1)])
            if target.get_coordinate() is not None:
                assert_is(moved, dense)
        if odd.get_coordinate() is not None:
            for target in ([Replicate()], [Shard(0)]):
                assert_is(distributed(dense, odd, [Partial()]).redistribute(placements=target), dense)

    return between_meshes


def several_moves(n):
    """In the background, and many tensors at once; and scattered from one rank in one message or several."""

    def together():
        mesh, side = sw.init_device_mesh("cpu", (n,)), math.isqrt(n)
        pairs = list(zip(layouts(mesh), layouts(mesh)[1:], strict=False))
        started = [
            distributed(numbers(*SHAPE, seed=i), mesh, source).redistribute(placements=target, async_op=True)
            for i, (source, target) in enumerate(pairs)
        ]
        for i, tensor in reversed(list(enumerate(started))):
            assert_is(tensor, numbers(*SHAPE, seed=i))
        tensors = [distributed(numbers(*SHAPE, seed=i), mesh, source) for i, (source, _) in enumerate(pairs)]
        for i, tensor in enumerate(sw.redistribute_many(tensors, [target for _, target in pairs])):
            assert_is(tensor, numbers(*SHAPE, seed=i))
        grid = sw.init_device_mesh("cpu", (side, side))
        for shape in [(3, 2), SHAPE]:
            assert_is(sw.distribute_tensor(numbers(*shape), grid, [Shard(0), Shard(1)]), numbers(*shape))
        for n_elements in (10, 2000, 30_000):  # reductions that go different ways
            reduced = distributed(numbers(n_elements), mesh, [Partial()]).redistribute(placements=[Replicate()])
            assert torch.equal(reduced.to_local(), numbers(n_elements))

    return together


def bags(ids, table):
    return F.embedding_bag(ids.view(-1, 2), table, mode="sum")


def lookups(*shape):
    def embedding_and_bags():
        mesh = sw.init_device_mesh("cpu", shape)
        n, (n_rows, n_columns) = mesh.size(), TABLE
        ids = torch.randint(n_rows, (2 * n + 6,), generator=torch.Generator().manual_seed(1))
        of_tables = {
            1: [[Shard(0)], [Shard(0, sizes=uneven(n_rows, n))], [Shard(1)], [Replicate()]],
            2: [[Shard(0), Shard(1)], [Replicate(), Shard(0)]],
        }[mesh.ndim]
        for of_table in of_tables:
            for of_ids, look_up in ((Shard(0), F.embedding), (Replicate(), bags)):
                results = []
                for is_dense in (True, False):
                    table, own_ids = numbers(n_rows, n_columns), ids
                    weights = torch.arange(1.0, n_columns + 1).double()
                    if not is_dense:
                        table, own_ids = (
                            distributed(table, mesh, of_table),
                            distributed(ids, mesh, [of_ids] * mesh.ndim),
                        )
                        weights = distributed(weights, mesh, [Replicate()] * mesh.ndim)
                    table = table.detach().requires_grad_()
                    rows = look_up(own_ids, table)
                    (rows * weights).sum().backward()
                    results.append((rows.detach(), table.grad))
                for ours, dense in zip(results[1], results[0], strict=True):
                    assert_is(ours, dense)

    return embedding_and_bags


PLANS = [
    {"strategy": "memory_balanced"},
    {"strategy": "memory_optimized", "row_slice_threshold": 1000, "data_parallel_threshold": 999},
]


def distributed_embedding(n):
    """The vectors of a layer of tables, and its tables after a step, in which the losses of all ranks are averaged."""
    shapes = {f"t{i}": (1 + 11 * i % 40, 64) for i in range(n // 64 + 3)}  # with a column for each rank at least
    values = {name: numbers(*shape, seed=7) for name, shape in shapes.items()}

    def ids_of(rank):
        generator = torch.Generator().manual_seed(rank)
        return {name: torch.randint(rows, (1 + rank % 3, 2), generator=generator) for name, (rows, _) in shapes.items()}

    counts = {name: torch.zeros(rows, dtype=torch.float64) for name, (rows, _) in shapes.items()}
    for rank in range(n):
        for name, ids in ids_of(rank).items():
            counts[name] += ids.flatten().bincount(minlength=shapes[name][0])

    def vectors_and_step():
        rank = sw.init_device_mesh("cpu", (n,)).get_rank()
        for plan in PLANS:
            tables = [sw.TableConfig(name, *shape, dtype="float64") for name, shape in shapes.items()]
            layer = sw.DistributedEmbedding(tables, **plan)
            layer.set_weights([values[name].numpy() for name in shapes])
            optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
            ids = ids_of(rank)
            vectors = layer(ids)
            for name, ours in vectors.items():
                assert torch.equal(ours, F.embedding_bag(ids[name], values[name], mode="sum")), (plan, name)
            sum(ours.sum() for ours in vectors.values()).backward()
            optimizer.step()
            for name, table in layer.tables.items():
                assert_is(table.detach(), values[name] - counts[name][:, None] / n)

    return vectors_and_step


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH + 1), nn.Linear(2 * WIDTH + 1, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def model_of_blocks():
    model = nn.Sequential(Block(), Block()).double()
    for i, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(i))
    return model


def steps(model, parts):
    """Two steps of AdamW on these parts of each batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(2):
        rows = [
            torch.randn(2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(99 * part + step))
            for part in parts
        ]
        model(torch.cat(rows)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def training(wrap, n_parts):
    """`wrap(model)` distributes the model and says which part of a batch is this rank's."""
    started = model_of_blocks()
    dense = copy.deepcopy(started)
    steps(dense, range(n_parts))

    def a_step_is_dense():
        model = copy.deepcopy(started)
        steps(model, [wrap(model)])
        for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
            assert_is(ours.detach(), theirs.detach())

    return a_step_is_dense


def fully_sharded(*shape):
    def wrap(model):
        mesh = sw.init_device_mesh("cpu", shape)
        for part in (*model, model) if mesh.ndim > 1 else (model,):
            fully_shard(part, mesh=mesh)
        return mesh.get_rank()

    return training(wrap, math.prod(shape))


def tensor_parallel_and_fully_sharded(side):
    def wrap(model):
        mesh = sw.init_device_mesh("cpu", (side, side), mesh_dim_names=("dp", "tp"))
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        for part in (*model, model):
            fully_shard(part, mesh=mesh["dp"])
        return mesh.get_local_rank("dp")

    return training(wrap, side)


def cases(n):
    """By name."""
    side = math.isqrt(n)
    shapes = [(n,), (side, side), (2, n // 8, 4)]
    return {
        **{f"moves on {shape}": moves(*shape) for shape in shapes},
        "moves to other meshes": moves_to_other_meshes(n),
        "several moves": several_moves(n),
        **{f"lookups on {shape}": lookups(*shape) for shape in shapes[:2]},
        "a distributed embedding": distributed_embedding(n),
        **{f"fully sharded on {shape}": fully_sharded(*shape) for shape in shapes[:2]},
        f"tensor parallel and fully sharded on {shapes[1]}": tensor_parallel_and_fully_sharded(side),
    }


def run_cases(rank, n, by_name):
    """Runs every case. An error has a note with the rank and the case."""
    for name, case in by_name.items():
        try:
            case()
        except BaseException as error:
            error.add_note(f"rank {rank} of {n}, {name}")
            raise
