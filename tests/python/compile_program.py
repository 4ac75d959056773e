"""Run by test_compile.py under torchrun: compile_program.py PART,PART FOLDER. Each part compiles functions of DTensors and compares with dense."""

import copy
import re
import warnings

import torch
import torch._dynamo
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torchrun import run_parts

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.placement_types import _StridedShard

EAGER_GRAPH = "aot_eager"


def mesh_of(*shape):
    return sw.init_device_mesh("cpu", shape or (dist.get_world_size(),))


def random(*sizes):
    return torch.rand(*sizes, generator=torch.Generator().manual_seed(sum(sizes))) - 0.5


def expect_dense(function, sizes, layouts, *, mesh=None, backend=EAGER_GRAPH, calls=2):
    """`function` compiled as one graph gives the dense values and gradients, laid out as when it runs as it is written."""
    torch._dynamo.reset()
    mesh = mesh or mesh_of()
    values = [random(*size) for size in sizes]
    dense = [value.clone().requires_grad_() for value in values]
    expected = function(*dense)
    expected.square().sum().backward()

    def operands():
        return [sw.distribute_tensor(v, mesh, p).requires_grad_() for v, p in zip(values, layouts, strict=True)]

    plain = function(*operands())
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for _ in range(calls):
        given = operands()
        result = compiled(*given)
        assert isinstance(result, DTensor)
        assert result.placements == plain.placements, (result.placements, plain.placements)
        torch.testing.assert_close(result.full_tensor(), expected.detach())
        result.square().sum().backward()
        for ours, theirs in zip(given, dense, strict=True):
            assert ours.grad.placements == ours.placements
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


def pointwise_and_products(_):
    rows = Shard(0, sizes=[4, *[0] * (dist.get_world_size() - 2), 1])  # uneven; of more than two ranks some are empty
    expect_dense(lambda x: torch.sin(x) * 2 + 1, [(5, 3)], [[rows]])
    expect_dense(lambda x, w: torch.relu(x @ w), [(5, 4), (4, 6)], [[Replicate()], [Shard(1)]])
    expect_dense(lambda x, w: torch.relu(x @ w), [(5, 4), (4, 6)], [[Shard(1)], [Shard(0)]])
    expect_dense(lambda x, w, v: torch.relu(x @ w) @ v, [(5, 4), (4, 7), (7, 3)], [[rows], [Shard(1)], [Shard(0)]])
    expect_dense(lambda x, y: (x.t() + y).softmax(0), [(5, 4), (4, 5)], [[Shard(0)], [Shard(0)]])
    expect_dense(
        lambda x, y: x * y[0] + y.sum(), [(1, 4), (1, 4)], [[Shard(0)], [Shard(0)]]
    )  # one row: the other ranks are empty


def partial_results(_):
    expect_dense(lambda x, w: x @ w, [(5, 4), (4, 6)], [[Shard(1)], [Shard(0)]])


def two_mesh_dims(_):
    mesh = mesh_of(2, 2)
    layouts = [[Shard(0), Replicate()], [Replicate(), Shard(1)], [Replicate(), Shard(0)]]
    expect_dense(lambda x, w, v: torch.relu(x @ w) @ v, [(5, 4), (4, 7), (7, 3)], layouts, mesh=mesh)


def inductor(_):
    layouts = [[Replicate()], [Shard(1)], [Shard(0)]]
    expect_dense(lambda x, w, v: torch.relu(x @ w) @ v, [(5, 4), (4, 7), (7, 3)], layouts, backend="inductor")


def late_waits(_):
    """Other work stands between the start and the end of a move in the code that inductor makes, and moves keep their order."""
    torch._dynamo.reset()
    mesh = mesh_of()
    weights = [sw.distribute_tensor(random(4, 6), mesh, [Shard(1)]).requires_grad_() for _ in range(2)]

    def function(x, y, v, w):
        first = sw.DTensor.from_local(x, mesh, [Partial()]).redistribute(placements=[Replicate()])
        other = torch.relu(y @ y.t())  # needs no move
        second = (first @ v).redistribute(placements=[Replicate()])
        return (second.sin() @ w.redistribute(placements=[Replicate()]).t()).to_local() + other.sum()

    x, y = random(3, 4), random(5, 5)
    expected = [function(x.requires_grad_(), y, *weights)]
    expected[0].sum().backward()
    expected += [each.grad.clone() for each in (x, *weights)]
    for each in (x, *weights):
        each.grad = None
    result, codes = run_and_get_code(torch.compile(function, fullgraph=True), x, y, *weights)
    _, more = run_and_get_code(result.sum().backward)
    torch.testing.assert_close([result, *(each.grad for each in (x, *weights))], expected)
    steps = r"= torch\.ops\.shardwise\.(start|finish)_move|extern_kernels\.(mm)\("
    forward, backward = (" ".join(map("".join, re.findall(steps, code))) for code in codes + more)
    assert forward.startswith("start mm finish mm start start finish"), forward
    assert re.search("start( mm)+ finish", backward), backward


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 7), nn.Linear(7, 4)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def attention(_):
    """Graphs hold torch's own operator, on pieces."""
    shapes, seen = [(2, 6, 6, 4)] * 3, []

    def attend(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def keep(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    for placement in (Replicate(), Shard(0), Shard(1)):
        expect_dense(attend, shapes, [[placement]] * 3, backend=backend)
    expect_dense(attend, shapes, [[Shard(2)], [Replicate()], [Replicate()]], backend=backend)
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in seen
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in seen
    assert not any("fused_attention" in name for name in seen)


def tensor_parallel(_):
    torch._dynamo.reset()
    torch.manual_seed(0)
    dense = Layer()
    layer = parallelize_module(copy.deepcopy(dense), mesh_of(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    compiled = torch.compile(layer, backend="inductor", fullgraph=True)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (dense, layer)]
    x = random(3, 4)
    for _ in range(3):
        for module, optimizer in zip((dense, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(compiled(x), dense(x))
    for ours, theirs in zip(layer.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = x * 2
        return self.o(self.q(x) * self.k(x) + self.v(x))


def few_moves(_):
    """Layers of one plain input reduce its gradient once; what sends nothing is made of torch's own operators."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    dense, ours, graphs = Heads(), Heads(), []
    ours.load_state_dict(dense.state_dict())
    plan = {"o": RowwiseParallel()} | dict.fromkeys("qkv", ColwiseParallel())
    ours = parallelize_module(ours, mesh_of(), plan)

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    compiled = torch.compile(ours, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
    inputs = [random(3, 4).requires_grad_() for _ in range(2)]
    for module, x in zip((dense, compiled), inputs, strict=True):
        module(x).square().sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    for parameter, expected in zip(ours.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad)
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    start = torch.ops.shardwise.start_move.default
    moves = [node for graph in graphs for node in graph.graph.nodes if start in node.args]
    assert len(moves) == 2, moves  # the sum that o gives, and the gradient of x
    assert {target for target in targets if target.startswith("shardwise.")} == {"shardwise.finish_move.default"}


def gradient_reduced_once(_):
    """A column layer gives the row layer before it a Partial gradient, whose sum both products of the row layer take."""
    torch._dynamo.reset()
    mesh, n, backwards = mesh_of(), dist.get_world_size(), []

    def function(x, w, v):
        return nn.functional.linear(nn.functional.linear(x, w), v)

    def keep(graph, _):
        backwards.append(graph)
        return make_boxed_func(graph.forward)

    layouts = [[Shard(1)], [Shard(1)], [Shard(0)]]
    values = [random(*size) for size in ((2, 2 * n), (4, 2 * n), (2 * n, 4))]
    dense = [value.clone().requires_grad_() for value in values]
    ours = [sw.distribute_tensor(v, mesh, p).requires_grad_() for v, p in zip(values, layouts, strict=True)]
    backend = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=keep)
    torch.compile(function, backend=backend, fullgraph=True)(*ours).sum().backward()
    function(*dense).sum().backward()
    for tensor, expected in zip(ours, dense, strict=True):
        torch.testing.assert_close(tensor.grad.full_tensor(), expected.grad)
    start = torch.ops.shardwise.start_move.default
    moves = [node for graph in backwards for node in graph.graph.nodes if start in node.args]
    assert len(moves) == 2, moves  # the column layer's input, for its weight's gradient, and the row layer's gradient


def profiles(_):
    """Tracing runs nothing: the call that compiles has no more operators than those after it."""
    mesh = mesh_of(3)
    x = sw.distribute_tensor(random(6, 6), mesh, [Shard(0)])
    compiled = torch.compile(lambda x: (x @ x.t()).relu().sum(), backend=EAGER_GRAPH, fullgraph=True)
    seen = []
    for _ in range(2):
        with sw.profile() as recorded:
            compiled(x)
        seen.append((len(recorded.operators), [each.collective for each in recorded.communications]))
    assert seen[0] == seen[1] and seen[0][0] == 0 and seen[0][1], seen


def selections(_):
    """Their derivatives write where the values came from, and need ask nobody whether that exists."""
    selections = {
        "max": lambda x, dim: x.max(dim)[0],
        "min": lambda x, dim: x.min(dim, keepdim=True)[0],
        "sort": lambda x, dim: x.sort(dim)[0],
        "topk": lambda x, dim: x.topk(2, dim)[0],
        "median": lambda x, dim: x.median(dim)[0],
        "kthvalue": lambda x, dim: x.kthvalue(2, dim)[0],
        "cummax": lambda x, dim: x.cummax(dim)[0],
    }
    for name, select in selections.items():
        for dim in (0, 1):
            try:
                expect_dense(lambda x, dim=dim, select=select: select(x * 2, dim), [(5, 4)], [[Shard(0)]], calls=1)
            except Exception as error:
                error.add_note(f"{name} along {dim}")
                raise


def evaluated_batch_norm(x):
    mean, variance = x.detach().amax(0), x.detach().square().amax(0)
    return nn.functional.batch_norm(x, mean, variance, training=False)


def statistics(_):
    """Along a sharded dim ranks combine counts, means and deviations."""
    uneven = Shard(0, sizes=[4, *[0] * (dist.get_world_size() - 2), 1])
    for layout in (Shard(0), Shard(1), uneven):
        for dim in (0, 1):
            for function in (torch.var, torch.std):
                expect_dense(lambda x, dim=dim, function=function: function(x, dim), [(5, 4)], [[layout]], calls=1)
            expect_dense(lambda x, dim=dim: torch.var_mean(x, dim)[1], [(5, 4)], [[layout]], calls=1)
            expect_dense(lambda x, dim=dim: x.quantile(0.3, dim), [(5, 4)], [[layout]], calls=1)
        expect_dense(lambda x: x.std(), [(5, 4)], [[layout]], calls=1)
        expect_dense(lambda x: nn.functional.batch_norm(x, None, None, training=True), [(5, 4)], [[layout]], calls=1)
        expect_dense(evaluated_batch_norm, [(5, 4)], [[layout]], calls=1)
        expect_dense(lambda x: nn.functional.layer_norm(x, (5,)), [(4, 5)], [[Shard(1)]], calls=1)


def moves_without_messages(_):
    def moved(x, to):
        return (x.redistribute(placements=[to]) if isinstance(x, DTensor) else x) * 2

    uneven = Shard(0, sizes=[4, *[0] * (dist.get_world_size() - 2), 1])
    for placement in (Shard(1), uneven, Partial()):
        expect_dense(lambda x, to=placement: moved(x.sin(), to), [(5, 3)], [[Replicate()]])


def expect_one_graph(model, x, mesh, compile_in_place, shard):
    """The layers of `model` are one graph, but that the first one's input may need no gradient; gradients are those of the dense model."""
    torch._dynamo.reset()
    dense = copy.deepcopy(model)
    counter = CompileCounterWithBackend("aot_eager")
    parallelize_module(model, mesh["tp"], {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()})
    for i, layer in enumerate(model):
        if compile_in_place:
            layer.compile(backend=counter, fullgraph=True)
        else:
            model[i] = torch.compile(layer, backend=counter, fullgraph=True)
        shard(model[i])
    shard(model)
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
    dense(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
    assert counter.frame_count == 2, counter.frame_count


def layers_share_graphs(_):
    """Hooks of each layer are functions of their own, and yet the graph is one; fully_shard gathers outside of it."""
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = random(3, 4)
    for in_place in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(*(Layer() for _ in range(4)))
        expect_one_graph(copy.deepcopy(model), x, mesh, in_place, lambda module: module)
        expect_one_graph(model, x, mesh, in_place, lambda module: sw.fully_shard(module, mesh=mesh["dp"]))


def methods(_):
    """redistribute, to_local, full_tensor, from_local and what is asked of a tensor, in one graph."""
    torch._dynamo.reset()
    mesh = mesh_of()

    def function(x, local):
        assert x.placements == (Shard(0),)
        columns = x.redistribute(placements=[Shard(1)])
        return (
            columns.cos(),
            x.to_local() * 2,
            DTensor.from_local(local, mesh, [Partial()]).full_tensor() + x.full_tensor(),
        )

    x, local = random(5, 4), torch.ones(5, 4)
    given = sw.distribute_tensor(x, mesh, [Shard(0)])
    columns, piece, whole = torch.compile(function, backend=EAGER_GRAPH, fullgraph=True)(given, local)
    assert columns.placements == (Shard(1),)
    torch.testing.assert_close(columns.full_tensor(), x.cos())
    torch.testing.assert_close(piece, given.to_local() * 2)
    torch.testing.assert_close(whole, x + dist.get_world_size())


def recompiles(_):
    """Another layout is another graph; the same layout is the same graph."""
    torch._dynamo.reset()
    mesh, counter = mesh_of(), CompileCounter()
    compiled = torch.compile(lambda x: x * 2, backend=counter)
    for _ in range(2):
        for placement in (Shard(0), Shard(1), Replicate()):
            x = sw.distribute_tensor(random(5, 4), mesh, [placement])
            torch.testing.assert_close(compiled(x).full_tensor(), random(5, 4) * 2)
    assert counter.frame_count == 3, counter.frame_count


def writes_and_views(_):
    torch._dynamo.reset()
    mesh = mesh_of()
    x = sw.distribute_tensor(random(5, 4), mesh, [Shard(0)])

    def add(x):
        x.add_(1)
        return x * 2, x.t()

    twice, view = torch.compile(add, backend=EAGER_GRAPH, fullgraph=True)(x)
    torch.testing.assert_close(x.full_tensor(), random(5, 4) + 1)
    torch.testing.assert_close(twice.full_tensor(), 2 * (random(5, 4) + 1))
    torch.testing.assert_close(view.full_tensor(), (random(5, 4) + 1).t())
    x.zero_()
    torch.testing.assert_close(view.full_tensor(), torch.zeros(4, 5))


def strided_parts(_):
    columns = [_StridedShard(1, split_factor=2)]
    expect_dense(lambda x, w: torch.relu(x @ w), [(5, 4), (4, 7)], [[Replicate()], columns])
    expect_dense(lambda x: x.view(28).sin(), [(4, 7)], [[Shard(1)]])
    torch._dynamo.reset()
    for layout in (columns, [_StridedShard(0, split_factor=3)]):
        x = sw.distribute_tensor(random(5, 4), mesh_of(), layout)
        twice = torch.compile(lambda x: x.add_(1) * 2, backend=EAGER_GRAPH, fullgraph=True)(x)
        torch.testing.assert_close(x.full_tensor(), random(5, 4) + 1)
        torch.testing.assert_close(twice.full_tensor(), 2 * (random(5, 4) + 1))


def breaks(_):
    """What has no place in a graph runs as it is written, between two graphs."""
    torch._dynamo.reset()
    mesh = mesh_of()
    table = sw.distribute_tensor(random(9, 3), mesh, [Shard(0)])
    ids = sw.distribute_tensor(torch.tensor([7, 1, 7, 0, 8]), mesh, [Shard(0)])
    for select in (
        lambda ids, table: nn.functional.embedding(ids, table * 2, scale_grad_by_freq=True) + 1,
        lambda _, table: (table * 2)[(table > 0).all(1)] + 1,
        lambda ids, _: torch.bincount(ids * 1, minlength=12) + 1,
        lambda ids, table: (table * 2).narrow(0, ids[0], 2) + 1,
    ):
        compiled = torch.compile(select, backend=EAGER_GRAPH)
        torch.testing.assert_close(
            compiled(ids, table).full_tensor(), select(ids.full_tensor(), table.full_tensor()), check_stride=False
        )


def placements_after_a_break(_):
    """torch hands its tracer's stand-ins for placements across a break of the graph."""

    def function(x):
        y = DTensor.from_local(x.to_local(), x.device_mesh, [Replicate()])
        return y * sw.distribute_tensor(torch.ones(5, 3), x.device_mesh, y.placements)

    torch._dynamo.reset()
    x = sw.distribute_tensor(random(5, 3), mesh_of(), [Replicate()]).requires_grad_()
    result = torch.compile(function, backend=EAGER_GRAPH)(x)
    assert result.placements == x.placements
    torch.testing.assert_close(result.full_tensor(), x.full_tensor())


def fused_optimizers(_):
    """A fused optimizer updates its table in the backward of compiled lookups too, also one that is made after the graph."""
    mesh = mesh_of()
    ids = sw.distribute_tensor(torch.tensor([7, 1, 7, 0]), mesh, [Replicate()])
    for look_up in (nn.functional.embedding, lambda ids, table: nn.functional.embedding_bag(ids.view(2, 2), table)):
        torch._dynamo.reset()
        tables = []
        for run in (look_up, torch.compile(look_up, backend=EAGER_GRAPH)):
            table = nn.Parameter(sw.distribute_tensor(random(9, 3), mesh, [Shard(0)]))
            run(ids, table).sum().backward()
            assert table.grad is not None
            table.grad = None
            optimizer = sw.optim.FusedSGD([table], lr=0.5)
            run(ids, table).sum().backward()
            assert table.grad is None
            optimizer.close()
            tables.append(table.full_tensor())
        torch.testing.assert_close(*tables)


def steps_that_need_values(_):
    """Draws, lookups and checks of indices are in the graph: the same values, layouts and gradients as without it, and the same errors on all ranks."""
    mesh = mesh_of()
    uneven = Shard(0, sizes=[4, *[0] * (dist.get_world_size() - 2), 2])
    functional = nn.functional
    functions = {
        "dropout": lambda x, _: functional.dropout(x * 2, 0.3),
        "alpha_dropout": lambda x, _: functional.alpha_dropout(x * 2, 0.3, training=True),
        "rand_like": lambda x, _: torch.rand_like(x) * x + torch.randn_like(x),
        "embedding": lambda x, i: functional.embedding(i, x * 2),
        "padding": lambda x, i: functional.embedding(i[:, None], x * 2, padding_idx=3),
        "index": lambda x, i: (x * 1)[:, i],
        "index_put": lambda x, i: (x * 1).index_put((i,), x[:4] * 2),
        "index_fill_": lambda x, i: (x * 1).index_fill_(0, i, 2.0),
        "index_fill": lambda x, i: (x * 1).index_fill(0, i, x.sum()) + (x * 1).index_fill_(0, i, x.sum()),
        "masked_scatter": lambda x, i: (x * 1).masked_scatter(x > i[0] / 9, x * 2).masked_scatter_(x > 0, x * 3),
        "gather": lambda x, i: (x * 1).gather(0, i[:, None]),
        "scatter": lambda x, i: (x * 1).scatter(0, i[:, None], 2.0),
        "one_hot": lambda x, i: functional.one_hot(i, 7) + x.sum(),
        "cross_entropy": lambda x, i: functional.cross_entropy((x * 1)[:4], i, ignore_index=3),
    }
    for of_x, of_ids in ((uneven, Replicate()), (Shard(1), Shard(0))):
        for name, function in functions.items():
            expect_as_uncompiled(name, function, mesh, of_x, of_ids)
    x = sw.distribute_tensor(random(6, 12), mesh, [Replicate()])
    wrong = sw.distribute_tensor(torch.tensor([0, 1, 99, 2]), mesh, [Shard(0)])
    for name in ("embedding", "gather", "cross_entropy"):
        compiled = torch.compile(functions[name], backend=EAGER_GRAPH, fullgraph=True)
        texts = [error_of(run, x, wrong) for run in (functions[name], compiled)]
        assert texts[0] and texts[0] == texts[1], (name, texts)


def error_of(run, *operands):
    try:
        run(*operands)
    except (IndexError, RuntimeError, ValueError) as error:
        return str(error)
    return None


def bags(_):
    """Bags of ids are in the graph, in tables of any layout, and with offsets whose values are not known before it runs."""
    mesh, functional = mesh_of(), nn.functional
    uneven = Shard(0, sizes=[4, *[0] * (dist.get_world_size() - 2), 2])
    starts = sw.distribute_tensor(torch.tensor([0, 0, 3]), mesh, [Replicate()])
    weights = sw.distribute_tensor(random(4), mesh, [Replicate()])

    def weighted(x, ids):
        own = (weights * x.sum()).redistribute(placements=ids.placements)
        return functional.embedding_bag(ids, x * 2, starts, mode="sum", per_sample_weights=own)

    functions = {
        "sum": lambda x, i: functional.embedding_bag(i.view(2, 2), x * 2, mode="sum"),
        "mean": lambda x, i: functional.embedding_bag(i.view(4, 1), x * 2, padding_idx=3),
        "max": lambda x, i: functional.embedding_bag(i.view(2, 2), x * 2, mode="max"),
        "frequencies": lambda x, i: functional.embedding_bag(i.view(2, 2), x * 2, scale_grad_by_freq=True),
        "offsets": lambda x, i: functional.embedding_bag(i, x * 2, starts, include_last_offset=True),
        "maxima of offsets": lambda x, i: functional.embedding_bag(i, x * 2, starts, mode="max"),
        "weights": weighted,
    }
    for of_x in (uneven, Shard(1), Replicate()):
        for name, function in functions.items():
            expect_as_uncompiled(name, function, mesh, of_x, Replicate())
            expect_as_uncompiled(name, function, mesh, of_x, Shard(0), same_layout=name not in LAID_OUT_BY_VALUES)
    table = sw.distribute_tensor(random(6, 12), mesh, [uneven])
    pool = torch.compile(functional.embedding_bag, backend=EAGER_GRAPH, fullgraph=True)
    falling = sw.distribute_tensor(torch.tensor([0, 3, 1]), mesh, [Replicate()])
    for ids, offsets in (([0, 99, 2, 3], starts), ([0, 1, 2, 3], falling)):
        given = sw.distribute_tensor(torch.tensor(ids), mesh, [Replicate()])
        texts = [error_of(run, given, table, offsets) for run in (functional.embedding_bag, pool)]
        assert texts[0] == texts[1] and "[aten::embedding_bag]" in texts[0], texts


LAID_OUT_BY_VALUES = ("offsets", "maxima of offsets", "weights")  # uncompiled, where ids are sharded


def bags_of_a_module(_):
    """nn.EmbeddingBag, distributed: its offsets are plain, and of bags of any lengths."""
    mesh = mesh_of()
    ids, starts = torch.tensor([5, 3, 0, 3, 1, 1]), torch.tensor([0, 1, 1, 4])

    def distributed(layer, placement):
        layer.weight = nn.Parameter(sw.distribute_tensor(layer.weight, mesh, [placement]))
        return sw.distribute_module(
            layer,
            mesh,
            input_fn=lambda _, given, mesh: (DTensor.from_local(given[0], mesh, [Replicate()]), *given[1:]),
            output_fn=lambda _, bags, mesh: bags.redistribute(placements=[Replicate()]).to_local(),
        )

    for placement in (Shard(0), Shard(1)):
        for mode in ("sum", "max"):
            for given in ((ids, starts), (ids.view(3, 2),)):
                torch._dynamo.reset()
                dense = nn.EmbeddingBag(6, 4, mode=mode, _weight=random(6, 4))
                layer = distributed(copy.deepcopy(dense), placement)
                bags = torch.compile(layer, backend=EAGER_GRAPH, fullgraph=True)(*given)
                torch.testing.assert_close(bags, dense(*given))
                bags.square().sum().backward()
                dense(*given).square().sum().backward()
                torch.testing.assert_close(layer.weight.grad.full_tensor(), dense.weight.grad)


def expect_as_uncompiled(name, function, mesh, of_x, of_ids, *, same_layout=True):
    torch._dynamo.reset()
    x = sw.distribute_tensor(random(6, 12), mesh, [of_x]).requires_grad_()
    ids = sw.distribute_tensor(torch.tensor([5, 3, 0, 3]), mesh, [of_ids])
    seen = []
    for run in (function, torch.compile(function, backend=EAGER_GRAPH, fullgraph=True)):
        torch.manual_seed(5)
        result = run(x, ids)
        (result * result).sum().backward()
        layouts = (result.placements, x.grad.placements)
        seen.append((layouts, result.full_tensor().detach(), x.grad.full_tensor()))
        x.grad = None
    note = f"{name} of {of_x}, ids {of_ids}"
    assert seen[0][0] == seen[1][0] or not same_layout, (note, seen[0][0], seen[1][0])
    torch.testing.assert_close(seen[1][1:], seen[0][1:], msg=lambda text: f"{note}: {text}")


def ranks_outside(_):
    """A rank outside of the mesh has a graph too: its pieces are empty, and it takes part in what all ranks send."""
    torch._dynamo.reset()
    mesh, wide = sw.DeviceMesh("cpu", [0, 2]), mesh_of()
    x, w = random(5, 4), random(4, 7)

    def function(x, w):
        hidden = nn.functional.dropout(torch.relu(x @ w) * 2, 0.3)
        return hidden, hidden.redistribute(wide, [Shard(0)]).sin()

    def operands():
        layouts = ((x, Replicate()), (w, Shard(1)))
        return [sw.distribute_tensor(value, mesh, [placement]).requires_grad_() for value, placement in layouts]

    seen = []
    for run in (function, torch.compile(function, backend=EAGER_GRAPH, fullgraph=True)):
        for _ in range(2):
            torch.manual_seed(5)
            given = operands()
            results = run(*given)
            torch.autograd.backward([results[0].sum(), results[1].square().sum()])
        found = (*results, *(each.grad for each in given))
        seen.append(([each.placements for each in found], [each.full_tensor().detach() for each in found]))
    assert seen[1][0] == seen[0][0], seen
    torch.testing.assert_close(seen[1][1], seen[0][1])


def groups_of_meshes(_):
    """A compiled function returns a mesh's groups."""
    torch._dynamo.reset()

    def groups(mesh):
        return mesh.size(), mesh.get_group(0), mesh.get_group("b")

    grid = sw.init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("a", "b"))
    assert torch.compile(groups, backend=EAGER_GRAPH, fullgraph=True)(grid) == groups(grid)


def marked_sizes(_):
    """A mark of a size that becomes that of a DTensor's divided dim is ignored, with a warning: layouts have numbers there."""
    torch._dynamo.reset()
    mesh = mesh_of()

    def function(local):
        x = DTensor.from_local(local[:, : local.shape[1] // 2], mesh, [Shard(0)])
        return (x * 2).to_local() + local.shape[0]

    compiled = torch.compile(function, backend=EAGER_GRAPH, fullgraph=True)
    for width in (4, 7):
        local = random(3, width)
        torch._dynamo.mark_dynamic(local, 0)
        torch._dynamo.mark_dynamic(local, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = compiled(local)
        torch.testing.assert_close(result, function(local))
        is_warned = any("[mark_dynamic] has no effect" in str(each.message) for each in caught)
        assert is_warned == (width == 4)  # the graph is one for all widths
    x = sw.distribute_tensor(random(6, 2), mesh, [Shard(0)])
    for mark in (torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mark(x, 0)
        assert f"[{mark.__name__}] has no effect" in str(caught[0].message)
    torch.testing.assert_close(
        torch.compile(lambda x: x.view(-1) * 2, fullgraph=True)(x).full_tensor(), random(6, 2).view(-1) * 2
    )


def plain_tensors(_):
    """Within a distributed module's forward they are replicas, in a part that runs as it is written."""
    torch._dynamo.reset()

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.linear(x) + torch.arange(4.0))

    torch.manual_seed(0)
    dense = Shifted()
    expected = dense(torch.ones(2, 4))
    compiled = torch.compile(sw.distribute_module(dense, mesh_of()), backend=EAGER_GRAPH)
    torch.testing.assert_close(compiled(torch.ones(2, 4)).full_tensor(), expected)


if __name__ == "__main__":
    run_parts({name: part for name, part in globals().items() if callable(part)})
