"""Run by test_compiled_views.py under torchrun: compiled_views_program.py PART,PART FOLDER. Each part compiles programs with views of DTensors, and
compares with the programs as they are written."""

import copy

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torchrun import run_parts

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard

VALUES = torch.arange(24.0).reshape(6, 4)
VIEWS = {
    "slice": lambda x: x[2:4],
    "step": lambda x: x[::2],
    "select": lambda x: x[1],
    "select a column": lambda x: x[:, 1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "t": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "view": lambda x: x.view(2, 3, 4),
    "flatten": lambda x: x.view(24),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "expand": lambda x: x[:, :1].expand(6, 3),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "as_strided": lambda x: x.as_strided((2, 3), (4, 1), 5),
    "alias": lambda x: torch.ops.aten.alias.default(x),
    "detach": lambda x: x.detach(),
    "other dtype": lambda x: x.view(torch.int32),
    "view of a view": lambda x: x[1:5].t()[1:3],
}
MANY = {
    "split": lambda x: x.split(2),
    "split of columns": lambda x: x.split(1, 1),
    "chunk": lambda x: x.chunk(2),
    "unbind": lambda x: x.unbind(1),
    "views of chunks": lambda x: tuple(each.t() for each in x.chunk(2, 1)),
}


def mesh():
    return sw.init_device_mesh("cpu", (dist.get_world_size(),))


def layouts():
    uneven = [5, *[0] * (dist.get_world_size() - 2), 1]
    return Shard(0), Shard(1), Replicate(), Shard(0, sizes=uneven), Partial()


def given(placement, *, requires_grad=False):
    """The values as a DTensor of this layout that owns its memory."""
    x = sw.distribute_tensor(VALUES.clone(), mesh(), [Replicate()])
    return x.redistribute(placements=[placement]).clone().requires_grad_(requires_grad)


def compiled(function, backend):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def expect_same(result, expected):
    assert type(result) is type(expected), (type(result), type(expected))
    if isinstance(expected, DTensor):
        assert result.placements == expected.placements, (result.placements, expected.placements)
        assert result.stride() == expected.stride(), (result.stride(), expected.stride())
        assert result.requires_grad == expected.requires_grad
        result, expected = result.full_tensor(), expected.full_tensor()
    torch.testing.assert_close(result, expected)


def cut_layouts():
    """Three of layouts(), for programs that take long to compile."""
    _, columns, _, uneven, terms = layouts()
    return columns, uneven, terms


def with_views_of(of_layouts):
    """Makes check(backend, placement, VIEWS) a part that calls it for each layout. A program has all views, because making a graph takes long."""

    def part_of(check):
        def part(backend):
            for placement in of_layouts():
                try:
                    check(backend, placement, VIEWS)
                except Exception as error:
                    error.add_note(f"views of {placement}")
                    raise

        part.__name__ = check.__name__
        return part

    return part_of


def expect_all_same(results, expected, names=VIEWS):
    for result, one, name in zip(results, expected, names, strict=True):
        try:
            expect_same(result, one)
        except Exception as error:
            error.add_note(str(name))
            raise


def backward_of(results):
    sum((i + 1) * each.sin().sum() for i, each in enumerate(results) if each.requires_grad).backward()


@with_views_of(layouts)
def returned_views_of_inputs(backend, placement, views):
    """They share memory with the input, with the layout that they have outside of programs."""

    def program(x):
        return [view(x) for view in views.values()]

    x, y = given(placement), given(placement)
    results, expected = compiled(program, backend)(x), program(y)
    expect_all_same(results, expected)
    sharing = [
        i
        for i, (name, each) in enumerate(zip(views, expected, strict=True))
        if name != "as_strided" and not is_moved(each, y)  # tracers cannot say where in memory as_strided() reads
    ]
    assert len(sharing) > len(views) / 2
    for each in (x, y):
        each.mul_(3)
    for i in sharing:
        expect_same(results[i], expected[i])
        if expected[i].is_floating_point() and 0 not in expected[i].stride():
            for each in (results[i], expected[i]):
                each.sub_(2)
            expect_same(x, y)


def is_moved(view, base):
    """Whether the view has values that other ranks sent: a compiled program returns a copy of these."""
    base.add_(0)
    is_stale = sw._C.is_stale(view)
    if is_stale:
        view.clone()  # receives them again
    return is_stale


@with_views_of(layouts)
def returned_views_have_a_history(backend, placement, views):
    def program(x):
        return [view(x) for view in views.values()]

    x, y = given(placement, requires_grad=True), given(placement, requires_grad=True)
    results, expected = compiled(program, backend)(x), program(y)
    expect_all_same(results, expected)
    for each in (results, expected):
        backward_of(each)
    expect_same(x.grad, y.grad)


def check_gradients(program, backend, placement, names=VIEWS, with_and_without=(True,)):
    for requires_grad in with_and_without:
        x, y = (given(placement, requires_grad=requires_grad) for _ in range(2))
        results, expected = compiled(program, backend)(x), program(y)
        expect_all_same(results, expected, names)
        if requires_grad:
            for each in (results, expected):
                backward_of(each)
            expect_same(x.grad, y.grad)


@with_views_of(cut_layouts)
def returned_views_of_intermediates(backend, placement, views):
    check_gradients(lambda x: [view(x * i) for i, view in enumerate(views.values())], backend, placement)


@with_views_of(cut_layouts)
def used_views(backend, placement, views):
    """Of inputs and of values that the program computed."""
    check_gradients(
        lambda x: [view(each) * 3 for view in views.values() for each in (x, x.sin())],
        backend,
        placement,
        [name for name in views for _ in range(2)],
    )


@with_views_of(cut_layouts)
def written_views(backend, placement, views):
    """A write to a view is a write to the tensor that it is a view of, an input or not."""
    writable = [view for view in views.values() if 0 not in view(given(placement)).stride()]

    def program(x):
        z = x * 2
        for i, view in enumerate(writable):
            for tensor in (x, z):
                view(tensor).add_(i)
        return z + 1

    x, y = given(placement), given(placement)
    expect_same(compiled(program, backend)(x), program(y))
    expect_same(x, y)


def many_views(backend):
    """Programs that return all results of one operator, which share memory."""
    for placement in (Shard(0),):
        for views in MANY.values():
            for program in (views, lambda x: views(x * 2), lambda x: (y := x * 2, *views(y))):  # noqa: B023
                check_gradients(program, backend, placement, range(len(program(VALUES))), (False, True))


def views_and_local_tensors(backend):
    """Programs that return a rank's piece of their input, or a DTensor of a plain input."""
    on = mesh()
    programs = {
        "to_local": lambda x: x.to_local(),
        "rows of to_local": lambda x: x.to_local()[1:],
        "to_local transposed": lambda x: x.to_local().t(),
    }

    def check(placement, program):
        for requires_grad in (False, True):
            x, y = (given(placement, requires_grad=requires_grad) for _ in range(2))
            result, expected = compiled(program, backend)(x), program(y)
            expect_same(result, expected)
            if requires_grad:
                for each in (result, expected):
                    each.sin().sum().backward()
                expect_same(x.grad, y.grad)
            else:
                for each in (x, y):
                    each.add_(1)
                expect_same(result, expected)

    for placement in layouts():
        for program in programs.values():
            check(placement, program)
    expect_same(compiled(lambda x: x.full_tensor(), backend)(given(Replicate())), VALUES)
    from_plain = (
        lambda x: DTensor.from_local(x, on, [Shard(0)]),
        lambda x: DTensor.from_local(x, on, [Shard(0)]).t(),
        lambda x: DTensor.from_local(x[1:], on, [Shard(1)])[:, 1:3],
    )
    for program in from_plain:
        for requires_grad in (False, True):
            x, y = (VALUES.clone().requires_grad_(requires_grad) for _ in range(2))
            result, expected = compiled(program, backend)(x), program(y)
            expect_same(result, expected)
            if requires_grad:
                for each in (result, expected):
                    each.sin().sum().backward()
                expect_same(x.grad, y.grad)
            else:
                for each in (x, y):
                    each.add_(1)
                expect_same(result, expected)


def writes_to_inputs(backend):
    """Views outside of the program see its writes, and a program that writes to a view of other ranks' values writes to their tensor."""
    for placement in layouts():
        x = given(placement)
        row, columns = x[3], x[:, 1:]
        compiled(lambda x: x.mul_(2), backend)(x)
        torch.testing.assert_close(row.clone().full_tensor(), VALUES[3] * 2)
        torch.testing.assert_close(columns.clone().full_tensor(), VALUES[:, 1:] * 2)
        compiled(lambda row: row.mul_(2), backend)(row)
        expected = VALUES * 2
        expected[3] *= 2
        torch.testing.assert_close(x.full_tensor(), expected)


def outputs_with_other_gradient_layouts(backend):
    """A program's results get gradients in other layouts than the results have, each in its own."""

    def program(x, w):
        y = x @ w
        return y, x * 2, y.redistribute(placements=[Replicate()]), x.sum(0)

    weight = torch.arange(20.0).reshape(4, 5) / 20

    def gradients(program):
        x = given(Shard(1), requires_grad=True)
        w = sw.distribute_tensor(weight, mesh(), [Shard(0)]).requires_grad_()
        a, b, c, d = program(x, w)
        loss = a.to_local(grad_placements=[Replicate()]).sin().sum() + b.redistribute(placements=[Shard(0)]).sin().sum()
        loss = loss + c.to_local(grad_placements=[Partial()]).sin().sum() + d.full_tensor().sin().sum()
        loss.sum().backward()
        return x.grad, w.grad

    for result, expected in zip(gradients(compiled(program, backend)), gradients(program), strict=True):
        expect_same(result, expected)


def mesh_methods(backend):
    """Results of a mesh's methods are constants of a graph."""
    n_ranks = dist.get_world_size()
    grid = sw.init_device_mesh("cpu", (1, n_ranks), mesh_dim_names=("dp", "tp"))

    def program(x):
        own, tp = x.device_mesh, grid["tp"]
        numbers = own.size() + own.get_local_rank() + own.ndim + own.shape[0] + tp.size() + grid.get_local_rank("tp")
        return x * (numbers + own.get_group().size() + tp.get_group().rank() + len(grid.get_all_groups()))

    expect_same(compiled(program, backend)(given(Shard(0))), program(given(Shard(0))))


def dynamic_sizes(backend):
    """Marks of dynamic dims have no effect, with a warning."""
    for rows in (6, 8):
        x = sw.distribute_tensor(torch.rand(rows, 4), mesh(), [Shard(0)])
        torch._dynamo.maybe_mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 0)
        expect_same(compiled(lambda x: x * 2, backend)(x), x * 2)


class Block(nn.Module):
    def __init__(self, norm) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def norms_under_tensor_parallelism(backend):
    """The norms work on each rank's part of the sequence, or on replicas."""
    from shardwise.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    parts = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    replicas = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    n_ranks, rank = dist.get_world_size(), dist.get_rank()
    for norm in (nn.LayerNorm, nn.RMSNorm):
        for plan in (parts, replicas):
            torch._dynamo.reset()
            torch.manual_seed(0)
            dense = Block(norm)
            x = torch.rand(2, 3 * n_ranks, 4)
            block = parallelize_module(copy.deepcopy(dense), mesh(), plan)
            block.compile(backend=backend, fullgraph=True)
            for model, values in ((dense, x), (block, x.chunk(n_ranks, 1)[rank] if plan is parts else x)):
                model(values).sin().sum().backward()
            for ours, theirs in zip(block.parameters(), dense.parameters(), strict=True):
                grad = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
                torch.testing.assert_close(grad, theirs.grad)


def compiled_backward(backend):
    """Compiled autograd: the gradient of a leaf is laid out between its graphs."""
    torch._dynamo.reset()
    weight = torch.arange(20.0).reshape(4, 5) / 20

    def leaves():
        return given(Shard(0), requires_grad=True), sw.distribute_tensor(weight, mesh(), [Replicate()]).requires_grad_()

    def step(x, w):
        (x @ w).sin().sum().backward()

    ours, theirs = leaves(), leaves()
    step(*theirs)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend=backend)(*ours)
    for one, expected in zip(ours, theirs, strict=True):
        expect_same(one.grad, expected.grad)


PARTS = {
    f"{part.__name__}.{backend}": lambda folder, part=part, backend=backend: part(backend)
    for backend in ("eager", "aot_eager", "inductor")
    for part in (
        returned_views_of_inputs,
        returned_views_have_a_history,
        returned_views_of_intermediates,
        used_views,
        written_views,
        many_views,
        views_and_local_tensors,
        writes_to_inputs,
        outputs_with_other_gradient_layouts,
        mesh_methods,
        dynamic_sizes,
        norms_under_tensor_parallelism,
        compiled_backward,
    )
}


if __name__ == "__main__":
    run_parts(PARTS)
