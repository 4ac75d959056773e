"""The parts of a model that a plan lays out: kinds of equal layers, lists of equal blocks, and lookups in tables."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

# The layouts of a layer over the ranks of "tp", and their styles. Outputs stay DTensors: so every combination of layouts computes the same, and the
# rules decide what is sent between layers.
WHOLE, COLUMN, ROW, EXPERT = "replicated", "column", "row", "expert"
STYLES = {
    COLUMN: "ColwiseParallel(use_local_output=False)",
    ROW: "RowwiseParallel(input_layouts=Replicate(), use_local_output=False)",
    EXPERT: "ExpertParallel(input_layouts=Replicate(), use_local_output=False)",
}
MEASURED_BLOCKS = 2  # of equal ones
Tables = nn.Embedding | nn.EmbeddingBag
Blocks = tuple[str, list[str]]  # the path of a list, and the names of equal modules in it


@dataclass
class Kind:
    """Equal layers, which get the same layout."""

    names: tuple[str, ...]  # for parallelize_module()
    layer: nn.Module  # one of them
    n_elements: int = 0  # of the parameters of all

    @property
    def layouts(self) -> Sequence[str]:
        if isinstance(self.layer, (nn.Linear, nn.Embedding)):
            return WHOLE, COLUMN, ROW
        shapes = [each.shape for each in self.layer.parameters(recurse=False)]
        are_stacked = len(shapes[0]) > 2 and len({shape[:1] for shape in shapes}) == 1
        return (WHOLE, EXPERT) if are_stacked else (WHOLE,)


def kinds_of(model: nn.Module) -> list[Kind]:
    """The kinds of all layers with parameters, in the model's order."""
    found: dict[tuple[str, ...], Kind] = {}

    def visit(module: nn.Module, names: tuple[str, ...]) -> None:
        sizes = [each.numel() for each in module.parameters(recurse=False)]
        if sizes:
            found.setdefault(names, Kind(names, module)).n_elements += sum(sizes)
        for group in equal_children(module):
            joined = ["*"] if 1 < len(group) == len(module._modules) else group
            for name in group:
                visit(getattr(module, name), tuple(f"{each}.{part}".lstrip(".") for each in names for part in joined))

    visit(model, ("",))
    return list(found.values())


def equal_children(module: nn.Module) -> list[list[str]]:
    """The names of children, equal ones together. Layers that stand in an nn.Sequential have different tasks, whatever their shapes."""
    groups: defaultdict[Any, list[str]] = defaultdict(list)
    for name, child in module.named_children():
        is_listed = isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and is_block(child))
        groups[structure(child) if is_listed else name].append(name)
    return list(groups.values())


def structure(module: nn.Module) -> Any:
    """Equal for modules of the same classes and shapes, and for all tables."""
    if isinstance(module, Tables):
        return type(module)
    shapes = tuple((name, each.shape, each.dtype) for name, each in module.named_parameters())
    return shapes, tuple((path, type(each)) for path, each in module.named_modules())


def is_block(module: nn.Module) -> bool:
    return len(module._modules) > 0 and any(True for _ in module.parameters())


def blocks_of(module: nn.Module, path: str = "") -> Iterator[Blocks]:
    """The blocks of the outermost lists."""
    groups = [group for group in equal_children(module) if is_block(getattr(module, group[0]))]
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and any(len(group) > 1 for group in groups):
        yield from ((path, group) for group in groups)
    else:
        for name, child in module.named_children():
            yield from blocks_of(child, f"{path}.{name}".lstrip("."))


def on_meta(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have no memory."""
    stand_ins: dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        empty = torch.empty_like(tensor, device="meta", requires_grad=False)
        stand_ins[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(model, stand_ins)


def with_fewer(model: nn.Module, blocks: Sequence[Blocks], longer: Blocks | None = None) -> nn.Module:
    """A copy with MEASURED_BLOCKS of equal blocks, and one more of `longer`."""
    copied = copy.deepcopy(model)
    for each in blocks:
        for name in each[1][MEASURED_BLOCKS + (each is longer) :]:
            del copied.get_submodule(each[0])._modules[name]
    return copied


def lookups_in(model: nn.Module) -> Iterator[tuple[str, Callable[[], bool]]]:
    """The modules within the model whose only parameters are tables, and for each whether it is a lookup, which a forward tells."""
    for path, module in model.named_modules():
        tables = [each for each in module.modules() if isinstance(each, Tables)]
        if path and tables and module not in tables and len(list(module.parameters())) == len(tables):
            calls: list[list[Any]] = [[] for _ in (module, *tables)]
            for each, noted in zip((module, *tables), calls):
                each.register_forward_hook(lambda _, *call, noted=noted: noted.append(call), with_kwargs=True)
            yield path, partial(is_lookup, calls)


def is_lookup(calls: list[list[Any]]) -> bool:
    """Whether a module got a list of ids, looked up each in the table of its place, and returned the list of results. The calls are its own, and
    those of each table."""
    if any(len(each) != 1 or len(each[0][0]) != 1 or each[0][1] for each in calls):
        return False
    ((ids,), _, rows), *of_tables = (each[0] for each in calls)
    if not type(ids) is type(rows) is list or not len(ids) == len(rows) == len(of_tables):
        return False
    return all(given is i and result is row for i, row, ((given,), _, result) in zip(ids, rows, of_tables))
