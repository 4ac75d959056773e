"""Symbols of a tracer in the place of a DTensor's sizes. One graph serves all sizes of dims that no rank divides.

A layout consists of numbers: that of a tensor with symbols has the sizes of the call that is being traced (runtime/tensor/symbolic_sizes.h). Operators
that need no number of such a dim run on the pieces, whose sizes are the symbols. Everything else fixes the symbols: the graph gets a guard, and a call
with other sizes makes another graph.
"""

import functools
import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from shardwise import _C

Size = int | torch.SymInt

# Operators with a list of the result's sizes, by the place of the argument; and those that take places in a dim, by the first and the last of them.
_SIZED = dict.fromkeys(
    [f"aten::{name}" for name in ("view", "_unsafe_view", "expand", "new_empty", "new_full", "new_ones", "new_zeros")],
    1,
)
_PLACED = {"aten::slice.Tensor": (2, 3), "aten::select.int": (2, 2)}
NO_SYMBOLS = "has no effect on this dim of a DTensor: it is divided between ranks, or an operator needs its size. A call with another size makes another graph."


def settled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A scope in which to run an operator, and its arguments, in which sizes are numbers. Symbols stay if the operator keeps them, else they are fixed."""
    name = func.name()
    if symbols := _symbolic_sizes(name, args):
        at: int | None = _SIZED[name]
    elif _keeps_symbols(func) and not (name in _PLACED and _has_no_elements(args[0])):
        at, symbols = _symbolic_places(name, args) if name in _PLACED else _symbolic_number(func, args)
    elif any(map(_has_symbols, tree_leaves((args, kwargs)))) and not _is_composed(func):
        return nullcontext(), *tree_map(_without_symbols, (args, kwargs))
    else:
        return nullcontext(), args, kwargs
    scope = _C.KeepsSymbols() if at is None else _C.KeepsSymbols(name, at, symbols)
    if at is not None:
        values = values_of(symbols)
        numbers = zip(args[at:], values, strict=False)
        known = (
            [values]
            if isinstance(args[at], (list, tuple))
            else [value if isinstance(arg, torch.SymInt) else arg for arg, value in numbers]
        )
        args = (*args[:at], *known, *args[at + len(known) :])
    return scope, *tree_map_only(torch.SymInt, lambda size: fixed([size])[0], (args, kwargs))


def with_number(func: Any, args: tuple[Any, ...]) -> Any:
    """The overload of an operator that takes a number, which may be a symbol, if it is called with a symbol instead of a second tensor."""
    is_called_so = len(args) > 1 and isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.SymInt)
    has_other = (
        func._overloadname == "Tensor" and "Scalar" in func.overloadpacket.overloads() and not _compares_number(func)
    )
    return func.overloadpacket.Scalar if is_called_so and has_other else func


@functools.cache
def _keeps_symbols(func: Any) -> bool:
    is_pointwise = torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
    return bool(is_pointwise or _C.keeps_symbols(func.name()))


@functools.cache
def _is_composed(func: Any) -> bool:
    """Whether torch composes the operator of others, each of which settles its own arguments."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _has_no_elements(source: torch.Tensor) -> bool:
    """Whether this rank's piece is empty, because another dim than that with the symbol is: strides of an empty piece do not follow its symbols."""
    return any(isinstance(size, int) and size == 0 for size in _C.piece_at(source, 0).shape)


def _compares_number(func: Any) -> bool:
    """Whether the operator's derivative compares its number, which torch cannot do with symbols."""
    return bool(func.name().partition(".")[0].rstrip("_") == "aten::pow")


def _symbolic_number(func: Any, args: tuple[Any, ...]) -> tuple[int | None, list[Size]]:
    """The last number among the arguments that is a symbol, and its place."""
    types = [argument.type for argument in func._schema.arguments]
    symbols = [i for i, value in enumerate(args) if isinstance(value, torch.SymInt)]
    places = [i for i in symbols if isinstance(types[i], torch.NumberType) and not _compares_number(func)]
    return (places[-1], [args[places[-1]]]) if places else (None, [])


def _symbolic_places(name: str, args: tuple[Any, ...]) -> tuple[int | None, list[Size]]:
    """The places in a dim that an operator is called with, and the place of the first among the arguments. 0 stands for those that are no symbols."""
    source, dim, *_ = (*args, 0)
    first, last = _PLACED[name]
    places = [place if isinstance(place, torch.SymInt) else 0 for place in args[first : last + 1]]
    is_symbolic = any(isinstance(place, torch.SymInt) for place in places)
    return (first, places) if is_symbolic and not divides(source.placements, dim, source.dim()) else (None, [])


def _symbolic_sizes(name: str, args: tuple[Any, ...]) -> list[Size]:
    """The sizes that an operator is called with; none if they need no symbols."""
    if name not in _SIZED or not any(map(_has_symbols, (args[0], *args[_SIZED[name]]))):
        return []
    source, sizes = args[0], list(args[_SIZED[name]])
    if name == "aten::expand":
        sizes = [source.shape[i - len(sizes)] if size == -1 else size for i, size in enumerate(sizes)]
    elif -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0:
            return []
        sizes[sizes.index(-1)] = source.numel() // rest
    return sizes if any(isinstance(size, torch.SymInt) for size in sizes) else []


def evaluated(sizes: Sequence[Size], symbols: Sequence[Size], values: Sequence[int]) -> list[int]:
    """`sizes` where the symbols have these values; none if they depend on other symbols."""
    known = {
        symbol.node.expr: value
        for symbol, value in zip(symbols, values, strict=True)
        if isinstance(symbol, torch.SymInt)
    }
    found = [size.node.expr.xreplace(known) if isinstance(size, torch.SymInt) else size for size in sizes]
    return [] if any(getattr(size, "free_symbols", ()) for size in found) else [int(size) for size in found]


def _has_symbols(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and _C.has_symbols(value))


def _without_symbols(value: Any) -> Any:
    if not _has_symbols(value):
        return value
    if isinstance(value, torch.SymInt):
        return fixed([value])[0]
    return _C.layout_of(value).wrap([with_numbers(_C.piece_at(value, 0))])


def with_numbers(piece: torch.Tensor) -> torch.Tensor:
    """`piece` with numbers instead of a tracer's symbols for its sizes: layouts consist of numbers."""
    sizes = (*piece.shape, *piece.stride())
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return piece
    numbers = fixed(sizes)
    shape, strides = numbers[: piece.dim()], numbers[piece.dim() :]
    return piece.view(shape) if piece.is_contiguous() else piece.as_strided(shape, strides)


def divides(placements: Sequence[Any], dim: int, n_dims: int) -> bool:
    """Whether a placement divides the dim between ranks."""
    divided = (each for each in placements if not each.is_replicate() and not each.is_partial())
    return any(not each.is_shard() or each.dim % n_dims == dim % n_dims for each in divided)


def with_whole_symbols(piece: torch.Tensor, placements: Sequence[Any] | None) -> torch.Tensor:
    """`piece`, whose symbols are fixed if a placement divides a dim that has one."""
    fixed([size for dim, size in enumerate(piece.shape) if divides(placements or (), dim, piece.dim())])
    return piece


def fixed_symbols() -> int:
    """How many symbols of the program that is being traced are fixed by now, by us or by torch."""
    context = torch._guards.TracingContext.try_get()
    env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    return 0 if env is None else sum(bool(env.replace(symbol).is_number) for symbol in list(env.replacements))


def fixed(sizes: Sequence[Size]) -> list[int]:
    """Fixes symbols: the graph has a guard from here on."""
    if symbols := [size for size in sizes if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None]:
        _drop_marks(symbols)
    return [int(size) for size in sizes]


def values_of(sizes: Sequence[Size]) -> list[int]:
    """The sizes in the call that is being traced. Fixes no symbols, except those whose values are unknown."""
    hints = [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]
    return fixed(sizes) if None in hints else [int(hint) for hint in hints]


def _drop_marks(sizes: Sequence[torch.SymInt]) -> None:
    """Drops mark_dynamic() of the graph's inputs for dims that these sizes depend on, and warns: with a mark, torch refuses a fixed size."""
    symbols = set().union(*(size.node.expr.free_symbols for size in sizes))
    waiting: Any = [(each.fake, each.symbolic_context) for each in sizes[0].node.shape_env.tracked_fakes or ()]
    is_dropped = False
    while waiting:
        fake, context = waiting.pop()
        marks: Any = getattr(context, "constraint_sizes", ())
        for dim, mark in enumerate(marks):
            is_mark = mark is not None and not mark.warn_only  # torch sets others by itself
            if (
                is_mark
                and isinstance(fake.shape[dim], torch.SymInt)
                and fake.shape[dim].node.expr.free_symbols & symbols
            ):
                marks[dim], is_dropped = None, True
        waiting += [(getattr(fake, name), inner) for name, inner in getattr(context, "inner_contexts", {}).items()]
    if is_dropped:
        warnings.warn(f"[mark_dynamic] {NO_SYMBOLS}", stacklevel=2)
