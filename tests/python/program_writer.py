"""Random programs: up to 20 operators on a few tensors, with writes in place, views and autograd.

A step is a line of Python that means the same on tensors and on DTensors; what a line may be is decided by running the lines
before it on tensors.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from shardwise import BlockShard, EnumerableShard, Partial, Placement, RaggedShard, Replicate, Shard, ShardMetadata
from shardwise.placement_types import _StridedShard


def strided_shard(dim: int, sf: int) -> Placement:
    """A strided Shard, by the names that its repr() gives the arguments."""
    return _StridedShard(dim, split_factor=sf)


# By the names in their repr().
PLACEMENTS = {
    kind.__name__: kind for kind in (BlockShard, EnumerableShard, Partial, RaggedShard, Replicate, Shard, ShardMetadata)
} | {"_StridedShard": strided_shard}

MAX_NUMEL = 200
# Where a write's source overlaps its target in part torch refuses it, having found their addresses; ranks hold what they hold.
OVERLAP = "some elements of the input tensor and the written-to tensor refer to a single memory location"
MESHES = [(1,), (2,), (3,), (4,), (2, 2)]


@dataclass(frozen=True)
class Input:
    """A leaf: random values of `shape`, laid out as `placements`."""

    name: str
    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    requires_grad: bool
    seed: int

    def dense(self) -> torch.Tensor:
        values = torch.randn(self.shape, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        return values.requires_grad_(self.requires_grad)


@dataclass
class Program:
    mesh: tuple[int, ...]
    inputs: list[Input]
    steps: list[str] = field(default_factory=list)
    is_of_views: bool = False  # compares strides, bases and versions too


def tensors_in(scope: dict) -> dict[str, torch.Tensor]:
    return {name: value for name, value in scope.items() if isinstance(value, torch.Tensor)}


def dense_scope() -> dict:
    """What lines see besides their tensors."""
    return {"torch": torch, "relayout": lambda tensor, placements: tensor.clone(), **PLACEMENTS}


class Writer:
    """Writes one program: keeps the tensors that its lines give so far."""

    def __init__(self, seed: int, is_of_views: bool = False):
        self.rng = random.Random(seed)
        self.ranges_rng = random.Random(f"ranges {seed}")  # the programs of before keep their steps
        self.program = Program(self.rng.choice(MESHES[:3] if is_of_views else MESHES), [], is_of_views=is_of_views)
        self.scope: dict = dense_scope()
        self.next_name = 0
        for _ in range(self.rng.randint(1, 3)):
            self.add_input()

    def write(self, n_steps: int) -> Program:
        kinds, weights = zip(*(KINDS_OF_VIEWS if self.program.is_of_views else KINDS), strict=True)
        while len(self.program.steps) < n_steps:
            kind = self.rng.choices(kinds, weights)[0]
            line = kind(self)
            if line is not None:
                self.add_step(line)
        return self.program

    def add_input(self) -> None:
        shape = tuple(self.rng.choice([1, 2, 3, 4, 5, 6]) for _ in range(self.rng.choice([0, 1, 1, 2, 2, 2, 3])))
        placements = self.placements(shape)
        leaf = Input(self.new_name(), shape, placements, self.rng.random() < 0.7, self.rng.randrange(1000))
        self.program.inputs.append(leaf)
        self.scope[leaf.name] = leaf.dense()

    def add_step(self, line: str) -> None:
        """Keeps the line where it runs, and one in five that do not."""
        before = dict(self.scope)
        try:
            exec(line, self.scope)
        except Exception as error:
            if self.rng.random() < 0.2 and OVERLAP not in str(error):
                self.program.steps.append(line)
            self.scope = before
            return
        sizes = [tensor.numel() for tensor in tensors_in(self.scope).values()]
        if max(sizes) > MAX_NUMEL:
            self.scope = before
            return
        self.program.steps.append(line)

    def new_name(self) -> str:
        self.next_name += 1
        return f"v{self.next_name - 1}"

    def some(self, where: Callable[[torch.Tensor], bool] = lambda tensor: True) -> str | None:
        """A floating tensor's name, late ones more often."""
        names = [name for name, x in tensors_in(self.scope).items() if x.is_floating_point() and where(x)]
        return names[-1 - int(self.rng.random() ** 2 * len(names))] if names else None

    def tensor(self, name: str) -> torch.Tensor:
        return self.scope[name]

    def dim(self, name: str) -> int:
        n_dims = self.tensor(name).dim()
        return self.rng.randrange(-n_dims, n_dims)

    def placements(self, shape: tuple[int, ...]) -> tuple[Placement, ...]:
        if len(self.program.mesh) == 1 and len(shape) == 2 and min(shape) > 1 and self.rng.random() < 0.1:
            return (self.boxes(shape),)
        placements = [self.placement(shape, n_ranks) for n_ranks in self.program.mesh]
        if shape and self.ranges_rng.random() < 0.15:
            mesh_dim = self.ranges_rng.randrange(len(placements))
            placements[mesh_dim] = self.ranges(shape, self.program.mesh[mesh_dim])
        elif shape and self.ranges_rng.random() < 0.2:
            mesh_dim, dim = self.ranges_rng.randrange(len(placements)), self.ranges_rng.randrange(len(shape))
            if all(getattr(later, "dim", None) != dim for later in placements[mesh_dim + 1 :]):
                kind, size = self.ranges_rng.choice([BlockShard, strided_shard]), self.ranges_rng.randint(1, 3)
                placements[mesh_dim] = kind(dim, size)
        return tuple(placements)

    def placement(self, shape: tuple[int, ...], n_ranks: int) -> Placement:
        choice = self.rng.random()
        if choice < 0.15:
            return Partial(self.rng.choice(["sum", "sum", "avg", "max"]))
        if choice < 0.3 or not shape:
            return Replicate()
        dim = self.rng.randrange(len(shape))
        if choice < 0.8 or len(self.program.mesh) > 1:
            return Shard(dim)
        ends = sorted(self.rng.randint(0, shape[dim]) for _ in range(n_ranks - 1))
        return Shard(dim, sizes=[end - begin for begin, end in zip([0, *ends], [*ends, shape[dim]], strict=True)])

    def ranges(self, shape: tuple[int, ...], n_ranks: int) -> Placement:
        units = [self.ranges_rng.randrange(4) for _ in range(n_ranks)]
        return RaggedShard(range(self.ranges_rng.randint(1, len(shape))), units if any(units) else [1] * n_ranks)

    def boxes(self, shape: tuple[int, ...]) -> Placement:
        rows, columns = shape
        row, column = self.rng.randrange(1, rows), self.rng.randrange(1, columns)
        pieces = [
            ((0, 0), (row, columns)),
            ((row, 0), (rows - row, column)),
            ((row, column), (rows - row, columns - column)),
        ]
        return EnumerableShard(
            [ShardMetadata(at, size, self.rng.randrange(self.program.mesh[0])) for at, size in pieces]
        )

    def result(self, expression: str) -> str:
        return f"{self.new_name()} = {expression}"


def pointwise(writer: Writer) -> str | None:
    x = writer.some()
    return x and writer.result(
        writer.rng.choice(
            [
                f"{x}.tanh()",
                f"{x}.sigmoid()",
                f"{x}.relu()",
                f"-{x}",
                f"{x} * 0.5",
                f"{x} + 1",
                f"{x}.sin()",
                f"{x}.abs()",
                f"{x}.clamp(-1, 1)",
                f"torch.nn.functional.gelu({x})",
                f"{x}.clone()",
                f"{x}.detach()",
                f"{x}.contiguous()",
                f"torch.zeros_like({x})",
                f"torch.where({x} > 0, {x}, 0.1)",
                f"{x}.masked_fill({x} > 1, 0.5)",
                f"torch.nn.functional.softplus({x})",
                f"1 / ({x}.square() + 1)",
            ]
        )
    )


def broadcast(writer: Writer) -> str | None:
    x = writer.some()
    y = x and writer.some(lambda other: fits(writer.tensor(x).shape, other.shape))
    return y and writer.result(
        writer.rng.choice(
            [
                f"{x} + {y}",
                f"{x} - {y}",
                f"{x} * {y}",
                f"torch.maximum({x}, {y})",
                f"{x} / ({y}.abs() + 1)",
                f"torch.where({x} > {y}, {x}, {y})",
                f"torch.addcmul({x}, {x}, {y})",
                f"torch.lerp({x}, {y}, 0.3)",
                f"torch.atan2({x}, {y})",
            ]
        )
    )


def fits(a: torch.Size, b: torch.Size) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def product(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() > 0)
    if not x:
        return None
    inner = writer.tensor(x).shape[-1]
    y = writer.some(lambda tensor: tensor.dim() == 1 and len(tensor) == inner)
    z = writer.some(lambda tensor: tensor.dim() == 2 and tensor.shape[0] == inner)
    choices = [f"{x} @ {y}"] * bool(y) + [f"{x} @ {z}"] * bool(z)
    if writer.tensor(x).dim() == 2:
        choices += [f"{x} @ {x}.t()", f"torch.nn.functional.linear({x}, {x})"]
    return writer.result(writer.rng.choice(choices)) if choices else None


def reduction(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() > 0 and tensor.numel() > 0)
    if not x:
        return None
    dim, keep = writer.dim(x), writer.rng.random() < 0.3
    return writer.result(
        writer.rng.choice(
            [
                f"{x}.sum()",
                f"{x}.mean()",
                f"{x}.sum({dim}, keepdim={keep})",
                f"{x}.mean({dim}, keepdim={keep})",
                f"{x}.amax({dim}, keepdim={keep})",
                f"{x}.max({dim}).values",
                f"{x}.min()",
                f"{x}.prod({dim})",
                f"{x}.var({dim}, correction=0)",
                f"{x}.std()",
                f"{x}.logsumexp({dim})",
                f"{x}.norm()",
                f"torch.linalg.vector_norm({x}, dim={dim})",
                f"{x}.softmax({dim})",
                f"{x}.log_softmax({dim})",
                f"{x}.cumsum({dim})",
                f"{x}.cumprod({dim})",
                f"{x}.argmax({dim}) * 0.5",
                f"({x} > 0).any({dim}) * 1.5",
                f"torch.nn.functional.layer_norm({x}, {list(writer.tensor(x).shape[-1:])})",
            ]
        )
    )


def view_of(writer: Writer, x: str) -> str:
    """An expression that is a view of `x`, a tensor of one or more dims."""
    tensor, rng = writer.tensor(x), writer.rng
    dim, other = writer.dim(x), writer.dim(x)
    size = tensor.shape[dim]
    begin = rng.randint(0, max(size - 1, 0))
    end = rng.randint(begin, size)
    order = rng.sample(range(tensor.dim()), tensor.dim())
    colons = ":, " * (dim % tensor.dim())
    choices = [
        f"{x}.transpose({dim}, {other})",
        f"{x}.permute({order})",
        f"{x}.reshape(-1)",
        f"{x}.view(-1)",
        f"{x}.flatten()",
        f"{x}.unsqueeze({dim})",
        f"{x}.squeeze()",
        f"{x}.select({dim}, {begin})",
        f"{x}.narrow({dim}, {begin}, {end - begin})",
        f"{x}[{colons}{begin}:{end}]",
        f"{x}[{colons}::2]",
        f"{x}[{colons}None]",
        f"{x}[..., {rng.randint(-1, 0)}]",
        f"{x}.unfold({dim}, {max(1, size // 2)}, {rng.choice([1, 2])})",
        f"{x}.chunk(2, {dim})[{rng.choice([0, 0, -1])}]",
        f"{x}.split({rng.choice([1, 2])}, {dim})[{rng.choice([0, -1])}]",
        f"{x}.unbind({dim})[{rng.choice([0, -1])}]",
        f"{x}.movedim({dim}, {other})",
        f"{x}.expand(2, {', '.join(['-1'] * tensor.dim())})",
        f"{x}.view_as({x})",
        f"{x}.detach()",
    ]
    if tensor.dim() > 1:
        choices += [f"{x}.diagonal()", f"{x}.flatten(0, 1)", f"{x}.mT"]
    if tensor.numel() % 2 == 0:
        choices.append(f"{x}.reshape(2, -1)")
    return rng.choice(choices)


def view(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() > 0)
    return x and writer.result(view_of(writer, x))


def several_views(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() > 0 and tensor.shape[0] > 1)
    if not x:
        return None
    how = writer.rng.choice(["chunk(2)", "split(1)", "unbind()"])
    return f"{writer.new_name()}, {writer.new_name()}, *_ = {x}.{how}"


def indexing(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() > 0 and tensor.numel() > 0)
    if not x:
        return None
    rng, dim = writer.rng, writer.dim(x)
    size = writer.tensor(x).shape[dim]
    ids = [rng.randrange(size) for _ in range(rng.randint(1, 4))]
    flat = [rng.randrange(writer.tensor(x).numel()) for _ in range(3)]
    colons = ":, " * (dim % writer.tensor(x).dim())
    return writer.result(
        rng.choice(
            [
                f"{x}[{colons}torch.tensor({ids})]",
                f"{x}.index_select({dim}, torch.tensor({ids}))",
                f"{x}.take(torch.tensor({flat}))",
                f"{x}.gather({dim}, {x}.argsort({dim}))",
                f"{x}[{x} > 0]",
                f"{x}.sort({dim}, stable=True).values",
                f"{x}.topk({min(2, size)}, {dim}).values",
                f"{x}.flip({dim})",
                f"{x}.roll(1, {dim})",
                f"{x}.repeat({', '.join(['2'] * writer.tensor(x).dim())})",
                f"{x}.repeat_interleave(2, {dim})",
                f"torch.cat([{x}, {x} * 2], {dim})",
                f"torch.stack([{x}, {x} + 1], {dim})",
                f"torch.nn.functional.pad({x}, (1, 2))",
                f"{x}.index_add({dim}, torch.tensor({ids}), {x}.index_select({dim}, torch.tensor({ids})))",
                f"{x}.index_fill({dim}, torch.tensor({ids}), 0.5)",
                f"{x}.scatter({dim}, {x}.argsort({dim}), {x})",
                f"{x}.masked_select({x} > 0.5)",
                *([f"{x}.tril()", f"{x}.triu(1)", f"{x}.diag_embed()"] if writer.tensor(x).dim() > 1 else []),
            ]
        )
    )


def write(writer: Writer) -> str | None:
    """In place; on a view as often as on a tensor of its own."""
    x = writer.some()
    if not x:
        return None
    rng = writer.rng
    target = view_of(writer, x) if writer.tensor(x).dim() > 0 and rng.random() < 0.4 else x
    if "unfold" in target:
        return None  # its windows may overlap
    try:
        written = eval(target, dict(writer.scope))
    except Exception:
        return None
    if any(size > 1 and stride == 0 for size, stride in zip(written.shape, written.stride(), strict=True)):
        return f"{target}.add_(1)"  # refused; fill_ and masked_fill_ are not by torch, and are by us
    shape = written.shape
    y = writer.some(lambda tensor: fits_into(tensor.shape, shape))
    choices = [
        f"{target}.mul_(0.5)",
        f"{target}.add_(1)",
        f"{target}.zero_()",
        f"{target}.fill_(0.25)",
        f"{target}.tanh_()",
        f"{target}.clamp_(-1, 1)",
        f"{target}.relu_()",
        f"{target}.masked_fill_({target} > 0, 0.5)",
    ]
    if y:
        choices += [f"{target}.add_({y})", f"{target}.copy_({y})", f"{target}.mul_({y})"] * 2
    if shape and shape[0] > 1:
        index = rng.randrange(shape[0])
        choices += [f"{target}[{index}] = 0.5", f"{target}[{index}:].mul_(2)", f"{target}[{target} > 0] = 0.125"]
        choices.append(f"{target}.index_fill_(0, torch.tensor([{index}]), 2)")
        choices.append(f"{target}.index_add_(0, torch.tensor([{index}]), {target}[:1].clone())")
        choices.append(f"{target}.cumsum_(0)")
    line = rng.choice(choices)
    return f"with torch.no_grad(): {line}" if rng.random() < 0.15 else line


def fits_into(a: torch.Size, shape: torch.Size) -> bool:
    return len(a) <= len(shape) and fits(a, shape) and all(m != 1 or n == 1 for m, n in zip(shape, a, strict=False))


def metadata(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() == 2)
    return x and writer.rng.choice([f"{x}.t_()", f"{x}.unsqueeze_(0)", f"{x}.transpose_(0, 1)", f"{x}.detach_()"])


def move(writer: Writer) -> str | None:
    x = writer.some()
    return x and writer.result(f"relayout({x}, {list(writer.placements(tuple(writer.tensor(x).shape)))})")


def backward(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.requires_grad)
    return x and f"{x}.sum().backward(retain_graph={writer.rng.random() < 0.7})"


KINDS = [
    (pointwise, 3),
    (broadcast, 4),
    (product, 2),
    (reduction, 3),
    (view, 5),
    (several_views, 1),
    (indexing, 3),
    (write, 6),
    (metadata, 0.3),
    (move, 1),
    (backward, 0.5),
]


def in_some_mode(writer: Writer, line: str | None) -> str | None:
    """The line under no_grad() or inference_mode(), or as it is."""
    mode = writer.rng.choice(["", "", "", "", "with torch.no_grad(): ", "with torch.inference_mode(): "])
    return line and mode + line


def own_tensor(writer: Writer) -> str | None:
    """Meta and real kernels of torch give results of operators other strides in dims of size 1, but not those of this one."""
    x = writer.some(lambda tensor: not tensor.is_inference())
    return x and in_some_mode(writer, writer.result(f"{x}.clone(memory_format=torch.contiguous_format)"))


def some_view(writer: Writer) -> str | None:
    x = writer.some(lambda tensor: tensor.dim() > 0)
    if not x:
        return None
    choices = [view_of(writer, x)] * 8 + [f"{x}.data", f"{x}.view_as({x})"]
    if not writer.tensor(
        x
    )._is_view():  # gradients of elements between those of a view are lost, in torch depending on later writes
        choices.append(f"{x}.as_strided({strided(writer, x)})")
    return in_some_mode(writer, writer.result(writer.rng.choice(choices)))


def strided(writer: Writer, x: str) -> str:
    """Sizes, strides and perhaps an offset, of elements that the memory of `x` may have."""
    rng, tensor = writer.rng, writer.tensor(x)
    rows, columns = rng.randint(1, 3), rng.randint(1, 3)
    step = rng.randint(columns, columns + 2)
    shape = rng.choice([((columns,), (1,)), ((rows, columns), (step, 1)), ((columns, rows), (1, step))])
    offset = rng.choice(["", f", {tensor.storage_offset() + rng.randint(-1, 3)}"])
    return f"{shape[0]}, {shape[1]}{offset}"


def change_of_shape(writer: Writer) -> str | None:
    x = writer.some()
    if not x:
        return None
    rng, tensor = writer.rng, writer.tensor(x)
    y = writer.some(lambda other: other.dtype == tensor.dtype)
    changes = [f"unsqueeze_({rng.randint(0, tensor.dim())})", "squeeze_()", "detach_()", "t_()", f"set_({y})"]
    if not tensor.is_inference():  # else fill_() may be refused
        changes.append(f"resize_({rng.choice([(2,), (1, 3), (4,), (2, 3), (5, 2)])}).fill_(0.5)")
    if tensor.numel() > 0:
        changes.append(f"as_strided_({strided(writer, x)})")
    if tensor.dim() > 0:
        dim, other = writer.dim(x), writer.dim(x)
        changes += [f"transpose_({dim}, {other})", f"squeeze_({dim})", f"swapaxes_({other}, {dim})"] * 3
        changes.append(f"squeeze_(({dim % tensor.dim()},))")
    return in_some_mode(writer, f"{x}.{rng.choice(changes)}")


def write_to_view(writer: Writer) -> str | None:
    x = writer.some(has_each_element_once)
    if not x:
        return None
    y = writer.some(lambda other: not shares_memory(other, writer.tensor(x))) or "0.5"
    return in_some_mode(
        writer,
        f"{x}.{writer.rng.choice(['mul_(2)', 'add_(1)', 'fill_(0.5)', f'copy_({y})' if y != '0.5' else 'neg_()', f'mul_({y})'])}",
    )


def has_each_element_once(x: torch.Tensor) -> bool:
    """Others are not written to: torch refuses some of the writes, and does the others in the order of its kernels."""
    memory = torch.arange(x.untyped_storage().nbytes() // 8)
    return memory.as_strided(x.shape, x.stride()).unique().numel() == x.numel()


def shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


KINDS_OF_VIEWS = [(own_tensor, 2), (some_view, 6), (change_of_shape, 5), (write_to_view, 4), (backward, 0.3)]


def programs(seeds: Iterator[int]) -> Iterator[Program]:
    for seed in seeds:
        writer = Writer(seed)
        yield writer.write(writer.rng.randint(3, 20))


def programs_of_views(seeds: Iterator[int]) -> Iterator[Program]:
    """Views, changes of shape in place and writes, in several modes."""
    for seed in seeds:
        writer = Writer(seed, is_of_views=True)
        yield writer.write(writer.rng.randint(3, 10))
