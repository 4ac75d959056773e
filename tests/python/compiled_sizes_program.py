"""Run by test_compiled_sizes.py under torchrun: compiled_sizes_program.py PART,PART FOLDER. Each part compiles programs and calls them with batches of
four lengths. It compares results and gradients with the program as it is written, and counts the graphs."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torchrun import run_parts

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

LENGTHS = (5, 6, 7, 9)
TWO, EACH = (
    [1, 2, 2, 2],
    [1, 2, 3, 4],
)  # graphs after each call: one for the first length and one for all others, or one for each length


def world_mesh():
    return sw.init_device_mesh("cpu", (torch.distributed.get_world_size(),))


def values(*sizes, seed=0, grad=True):
    generator = torch.Generator().manual_seed(sum(sizes) + seed)
    return (torch.rand(*sizes, generator=generator) - 0.5).requires_grad_(grad)


def placed(*sizes, by, seed=0, grad=True):
    mesh = world_mesh()
    return sw.distribute_tensor(values(*sizes, seed=seed, grad=False), mesh, [by]).requires_grad_(grad)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def expect(graphs, function, operands, *, backend="aot_eager", lengths=LENGTHS):
    """Expects these numbers of graphs. `operands(n)`: those of a call with length n."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter)
    parameters = [*function.parameters()] if isinstance(function, nn.Module) else []
    close = {"rtol": 1e-4, "atol": 1e-4} if backend == "inductor" else {}  # its kernels add in another order
    counts = []
    for n in lengths:
        sides = []
        for each in (function, compiled):
            given = operands(n)
            results = each(*given)
            results = results if isinstance(results, tuple) else (results,)
            loss = sum(whole(result).pow(2).sum() for result in results if result.requires_grad)
            leaves = [*given, *parameters] if isinstance(loss, torch.Tensor) else []
            if leaves:
                loss.backward()
            gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
            sides.append([*results, *gradients])
            for parameter in parameters:
                parameter.grad = None
        assert len(sides[0]) == len(sides[1])
        for dense, result in zip(*sides, strict=True):
            assert result.shape == dense.shape and result.stride() == dense.stride()
            if isinstance(dense, DTensor):
                assert result.placements == dense.placements
            torch.testing.assert_close(whole(result.detach()), whole(dense.detach()), **close)
        counts.append(counter.frame_count)
    is_empty = any(isinstance(each, DTensor) and each.to_local().numel() == 0 for each in operands(lengths[-1]))
    assert counts == graphs or is_empty, counts  # where a rank has no elements, some operators need their sizes


class Block(nn.Module):
    def __init__(self, features=24):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(features), nn.Linear(features, 18), nn.Linear(18, features)
        self.q, self.k, self.v, self.o = (nn.Linear(features, features) for _ in range(4))

    def forward(self, x):
        n_batch, length, _ = x.shape
        q, k, v = (part(x).view(n_batch, length, -1, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.o(attended.reshape(n_batch, length, -1))
        return x + self.down(F.gelu(self.up(self.norm(x))))


STYLES = {"up": ColwiseParallel, "down": RowwiseParallel, **dict.fromkeys("qkv", ColwiseParallel), "o": RowwiseParallel}


def styled(module, plan):
    torch.manual_seed(0)
    module = module()
    parallelize_module(module, world_mesh(), plan)
    return module


def styles(_):
    block = styled(Block, {name: style() for name, style in STYLES.items()})
    expect(TWO, block, lambda n: (values(2, n, 24),))
    expect(TWO, block, lambda n: (values(n, 3, 24),))
    expect(TWO, block, lambda n: (values(2, n, 24),), backend="inductor")
    head = styled(lambda: nn.Sequential(nn.Linear(16, 7)), {"0": ColwiseParallel(output_layouts=Replicate())})
    expect(TWO, head, lambda n: (values(2, n, 16),))


def styles_that_divide_lengths(_):
    """A length that is divided between ranks is a number of the layout."""
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1))}
    layers = styled(lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 18)), plan)
    expect(EACH, layers, lambda n: (values(2, n, 16),))


def lookups(_):
    def ids(n):
        return ((torch.arange(2 * n) * 7 % 21).reshape(2, n),)

    for style in (RowwiseParallel, ColwiseParallel):
        plan = {"0": style(input_layouts=Replicate(), output_layouts=Replicate()), "1": ColwiseParallel()}
        layers = styled(lambda: nn.Sequential(nn.Embedding(21, 16, padding_idx=3), nn.Linear(16, 18)), plan)
        expect(TWO, layers, ids)
    expect(
        TWO,
        lambda at, table: F.embedding(at, table),
        lambda n: (sw.distribute_tensor(*ids(n), world_mesh(), [Replicate()]), placed(21, 8, by=Shard(0))),
    )
    for by in (Shard(0), Shard(1)):  # as positions are looked up
        expect(
            TWO,
            lambda at, table: F.embedding(at, table),
            lambda n, by=by: (sw.distribute_tensor(torch.arange(n), world_mesh(), [Replicate()]), placed(21, 8, by=by)),
        )


def written_rows(_):
    """A graph writes the rows that a rank has, and no size in it depends on the indices."""

    def write(table, rows, at):
        table = table * 1
        table[at] = rows
        return table

    def operands(n):
        at = sw.distribute_tensor(torch.arange(n) * 2, world_mesh(), [Replicate()])
        return placed(21, 8, by=Shard(0)), placed(n, 8, by=Replicate(), seed=1), at

    expect(EACH, write, operands)


def operators(_):
    def of(by, function, *more):
        expect(TWO, function, lambda n: (placed(4, n, 7, by=by), *more))

    for by in (Replicate(), Shard(0), Shard(2)):  # of 7 features the ranks have different numbers
        of(by, lambda x: (x * 2 + x.sigmoid()).relu())
        of(by, lambda x: x.sum())
        of(by, lambda x: x.mean(1))
        of(by, lambda x: x.sum(1) / x.shape[1])
        of(by, lambda x: x.softmax(1))
        of(by, lambda x: x.log_softmax(1))
        of(by, lambda x: x.amax(1) + x.amin(2, keepdim=True).sum(1))
        of(by, lambda x: torch.bmm(x, x.mT).tril(1) + torch.bmm(x, x.mT).triu(-1))
        of(by, lambda x: x * (x > 0.2).any(2, keepdim=True) + (x > -2).all())
        of(by, lambda x: x.to(torch.bfloat16).float() * torch.full_like(x, 3) + torch.zeros_like(x).copy_(x))
        graphs = EACH if by == Shard(2) else TWO  # ranks choose their messages by the number of rows
        expect(graphs, lambda x: F.layer_norm(x, (7,)), lambda n, by=by: (placed(4, n, 7, by=by),))
        of(by, lambda x: x.logsumexp(2) + x.norm(dim=2))
        of(by, lambda x: F.rms_norm(x, (7,)))
        of(by, lambda x: x.transpose(1, 2) * 2)
        of(by, lambda x: x.clone().add_(1).mul_(x))
        of(by, lambda x: x.to_local() * 2)
        of(by, lambda x: x.full_tensor() * 2)
        of(by, lambda x: x.view(4, x.shape[1], 7, 1) * 2)
    of(Replicate(), lambda x: x.redistribute(placements=[Shard(2)]) * 2)
    of(Shard(0), lambda x: x.redistribute(placements=[Shard(2)]) * 2)
    of(Replicate(), lambda x, w: torch.relu(x @ w), placed(7, 6, by=Shard(1)))
    of(Shard(2), lambda x, w: torch.relu(x @ w), placed(7, 6, by=Shard(0)))
    of(Replicate(), lambda x, w, b: F.linear(x, w, b), placed(6, 7, by=Shard(0)), placed(6, by=Shard(0)))
    expect(TWO, lambda x, y: x + y, lambda n: (placed(4, n, 7, by=Shard(2)), placed(n, 7, by=Shard(1))))
    expect(TWO, lambda x: x.relu(), lambda n: (placed(1, n, 7, by=Shard(0)),))  # one rank has all elements


def sizes_that_are_needed(_):
    """A graph for each length, and right results."""
    for function in (
        lambda x: x.flatten(0, 1) * 2,
        lambda x: x.redistribute(placements=[Shard(1)]) * 2,
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*mark_dynamic")  # nothing is marked
            expect(EACH, function, lambda n: (placed(4, n, 7, by=Shard(0)),))
    expect(EACH, lambda x: x * 2, lambda n: (placed(n, 4, by=Shard(0)),))
    expect(TWO, lambda x: x.new_zeros(x.shape[1], 3) + x.sum(), lambda n: (placed(4, n, 7, by=Shard(0)),))
    expect(
        TWO,
        lambda x, y: x.expand(-1, y.shape[1], -1) * 2,
        lambda n: (placed(2, 1, 4, by=Shard(2)), placed(2, n, 4, by=Shard(2))),
    )
    expect([1, 2, 3, 3], lambda x: x * 2 if x.shape[1] > 6 else x * 3, lambda n: (placed(4, n, by=Shard(0)),))


def local_tensors(_):
    mesh = world_mesh()
    for by, graphs in ((Replicate(), TWO), (Shard(2), TWO), (Partial(), TWO), (Shard(1), EACH)):
        expect(
            graphs,
            lambda x, by=by: DTensor.from_local(x, mesh, [by]).redistribute(placements=[Replicate()]) * 2,
            lambda n: (values(2, n, 4),),
        )


def ranks_outside(_):
    """A rank outside of a mesh has no piece, and so no symbol. It makes a graph for each length, and sends what the others expect."""
    world, part = world_mesh(), sw.DeviceMesh("cpu", [0, 1])

    def moved(x):
        x = DTensor.from_local(x, part, [Shard(0)])
        return x.redistribute(device_mesh=world, placements=[Replicate()]).mean(1)

    torch._dynamo.reset()
    compiled = torch.compile(moved, backend="aot_eager")
    for n in LENGTHS:
        x = values(4, n, 7, grad=False)
        torch.testing.assert_close(compiled(x).full_tensor(), moved(x).full_tensor())


def returned_views_and_writes(_):
    for view in (
        lambda x: x.transpose(0, 1),
        lambda x: x.view(x.shape[0], 2, 2),
        lambda x: x.detach(),
        lambda x: x.unsqueeze(0),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(view, backend="aot_eager")
        for n in LENGTHS:
            x = placed(n, 4, by=Shard(1), grad=False)
            result, expected = compiled(x), view(x)
            assert result.shape == expected.shape and result.stride() == expected.stride()
            assert result.placements == expected.placements
            x.add_(1)  # the result shares its memory
            torch.testing.assert_close(result.full_tensor(), expected.full_tensor())
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.mul_(2), backend="aot_eager")
    for n in LENGTHS:
        x, y = (placed(n, 4, by=Shard(1), grad=False) for _ in range(2))
        compiled(x)
        torch.testing.assert_close(x.full_tensor(), y.full_tensor() * 2)


def marks(_):
    """mark_dynamic makes the first graph one for all lengths. On a divided dim it has no effect, and warns."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.mean(1) * x.shape[1], backend="aot_eager")  # some rank may have no elements
    for n in LENGTHS:
        x = placed(2, n, 7, by=Shard(0))
        torch._dynamo.mark_dynamic(x, 1)
        result = compiled(x)
        torch.testing.assert_close(result.full_tensor(), x.full_tensor().sum(1))
        result.sum().backward()
    for dim, graphs in ((0, [1, 1, 1]), (1, [1, 2, 3])):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled, counts = torch.compile(lambda x: x * 2, backend=counter), []
        for n in LENGTHS[:3]:
            x = placed(n, 4, by=Shard(1), grad=False) if dim == 0 else placed(4, n, by=Shard(1), grad=False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch._dynamo.mark_dynamic(x, dim)
                torch.testing.assert_close(compiled(x).full_tensor(), x.full_tensor() * 2)
            assert dim == 0 or any("[mark_dynamic] has no effect" in str(each.message) for each in caught)
            counts.append(counter.frame_count)
        assert counts == graphs, counts


def two_mesh_dims(_):
    mesh = sw.init_device_mesh("cpu", (2, 2))

    def given(n):
        x = sw.distribute_tensor(values(4, n, 7, grad=False), mesh, [Shard(0), Shard(2)]).requires_grad_()
        w = sw.distribute_tensor(values(7, 6, grad=False), mesh, [Replicate(), Shard(0)]).requires_grad_()
        return x, w

    expect(TWO, lambda x, w: torch.relu(x @ w), given)


PARTS = {
    part.__name__: part
    for part in (
        styles,
        styles_that_divide_lengths,
        lookups,
        written_rows,
        operators,
        sizes_that_are_needed,
        local_tensors,
        ranks_outside,
        returned_views_and_writes,
        marks,
        two_mesh_dims,
    )
}


if __name__ == "__main__":
    run_parts(PARTS)
