"""DTensors under torch's tracers (torch.compile, torch.export, make_fx): graphs have operators on pieces, and moves between ranks.

A tracer takes a DTensor apart into this rank's pieces and its TensorLayout, and builds a DTensor of its own pieces, which have no values.
`run_traced` runs operators on such a tensor as on any DTensor. So the graph gets each operator on a piece, a `shardwise::start_move` and a
`shardwise::finish_move` per redistribution, and one `shardwise::call` for other steps that need values, such as a draw of random numbers. An
operator whose sizes or messages depend on values raises NotImplementedError.
"""

import functools
import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from shardwise import _C
from shardwise._torch_versions import register_constant
from shardwise.placement_types import KINDS

_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse2)
# Operators whose results on pieces have the right sizes for all sizes of dims that are whole on each rank, as pointwise ones do.
_KEEP_SYMBOLS = frozenset(
    {"aten::alias", "aten::detach", "aten::linear", "aten::matmul", "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward", "aten::_fused_rms_norm", "aten::_softmax", "aten::_softmax_backward_data", "aten::sum", "aten::sum.dim_IntList",
     "aten::mean", "aten::mean.dim", "aten::unsqueeze", "aten::squeeze.dim", "aten::squeeze.dims", "aten::clone",
     "aten::t", "aten::transpose.int", "shardwise::index", "shardwise::linear_of_rows", "shardwise::linear_weight_grad", "shardwise::matmul", "shardwise::put",
     "shardwise::put_"}
)  # fmt: skip
# Operators with a list of sizes of the result, by the place of the argument.
_SIZED = {"aten::view": 1, "aten::_unsafe_view": 1, "aten::expand": 1}
NO_SYMBOLS = "has no effect on this dim of a DTensor: it is divided between ranks, or an operator needs its size. A call with another size makes another graph."
# Words of the errors that a tracer raises if the memory of a tensor is read.
_NO_VALUES = ("data pointer", "doesn't have storage", "data_ptr", "data is not allocated")


def run_traced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator on traced DTensors. Raises NotImplementedError if it needs values."""
    register_steps()
    if (
        any(isinstance(value, torch.SymInt) for value in args)
        and "Scalar" in func.overloadpacket.overloads()
        and func._overloadname == "Tensor"
    ):
        func = func.overloadpacket.Scalar  # which takes a symbol
    arguments = func._schema.arguments
    args = tuple(map(_operand, arguments, args))
    kwargs = {each.name: _operand(each, kwargs[each.name]) for each in arguments if each.name in kwargs}
    scope: Any = nullcontext()
    if _keeps_symbols(func):
        at = _symbolic_number(func, args)
        scope = _C.KeepsSymbols() if at is None else _C.KeepsSymbols(func.name(), at, [args[at]])
        if at is not None:
            args = (*args[:at], *values_of([args[at]]), *args[at + 1 :])
        args, kwargs = tree_map_only(torch.SymInt, lambda size: numbers([size])[0], (args, kwargs))
    elif sizes := _symbolic_sizes(func, args):
        at = _SIZED[func.name()]
        args = (*args[:at], values_of(sizes), *args[at + 1 :])
        scope = _C.KeepsSymbols(func.name(), at, sizes)
    elif any(_has_symbols(each) for each in tree_leaves((args, kwargs))):
        args, kwargs = tree_map(_with_numbers, (args, kwargs))
    try:
        with scope:
            results = func.redispatch(_KERNELS, *args, **kwargs)
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if hasattr(type(result), _NO_PIECE) and _C.layout_of(result).n_pieces == 0:
                _no_elements(result)  # made now, in the tracer's modes
        return results
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_VALUES):
            raise NotImplementedError(
                f"[{func}] reads the values of its operands, but a traced program has no values. Exclude it from tracing with "
                "torch.compiler.disable, or let torch.compile break the graph here."
            ) from error
        raise


@functools.cache
def _keeps_symbols(func: torch._ops.OpOverload) -> bool:
    is_pointwise = torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
    return is_pointwise or func.name() in _KEEP_SYMBOLS


def _symbolic_number(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> int | None:
    """The place of the last number that is a symbol; None if there is none."""
    arguments = func._schema.arguments
    places = [
        i
        for i, value in enumerate(args)
        if isinstance(value, torch.SymInt) and isinstance(arguments[i].type, torch.NumberType)
    ]
    return places[-1] if places else None


def _symbolic_sizes(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> list[int | torch.SymInt] | None:
    """The sizes that an operator is called with, if there are symbols among them that the view of another tensor can be given, too."""
    if func.name() not in _SIZED or not any(map(_has_symbols, (args[0], *args[_SIZED[func.name()]]))):
        return None
    source, sizes = args[0], list(args[_SIZED[func.name()]])
    if func.name() == "aten::expand":
        sizes = [source.shape[i - len(sizes)] if size == -1 else size for i, size in enumerate(sizes)]
    elif -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0:
            return None
        sizes[sizes.index(-1)] = source.numel() // rest
    known = {size.node.expr for size in source.shape if isinstance(size, torch.SymInt)}
    used = {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}
    is_backward = torch._C._current_graph_task_id() != -1  # a program returns no view that its backward makes
    return sizes if used and (is_backward or used <= known) else None


def evaluated(
    sizes: Sequence[int | torch.SymInt], symbols: Sequence[int | torch.SymInt], values: Sequence[int]
) -> list[int]:
    """`sizes` where the symbols have these values."""
    known = {
        symbol.node.expr: value
        for symbol, value in zip(symbols, values, strict=True)
        if isinstance(symbol, torch.SymInt)
    }
    return [int(size.node.expr.xreplace(known)) if isinstance(size, torch.SymInt) else size for size in sizes]


def _has_symbols(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and _C.has_symbols(value))


def _with_numbers(value: Any) -> Any:
    if not _has_symbols(value):
        return value
    if isinstance(value, torch.SymInt):
        return numbers([value])[0]
    return _C.layout_of(value).wrap([static(_C.piece_at(value, 0))])


def _operand(argument: Any, value: Any) -> Any:
    """`value`, as a tensor if it is a number in the place of a tensor: kernels take tensors."""
    if not isinstance(argument.type, torch.TensorType):
        return value
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        value = numbers([value])[0] if isinstance(value, torch.SymInt) else float(value)
    return _C.wrapped_number(value) if isinstance(value, (int, float, complex)) else value


def _piece_at(i: int) -> property:
    """The attribute of a DTensor that is this rank's i-th piece. Setting it does nothing: torch sets a gradient's piece after it has arranged its
    memory as the graph expects, and goes on with that piece."""
    return property(lambda tensor: _C.piece_at(tensor, i), lambda tensor, piece: None)


def _no_elements(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor, the tracer's if the DTensor is. The DTensor keeps it, because tracers and guards identify tensors by object."""
    if _NO_PIECE in tensor.__dict__:
        return tensor.__dict__[_NO_PIECE]
    mode: Any = nullcontext()
    if not _is_traced(tensor):
        mode = _disable_current_modes()
    elif not _get_current_dispatch_mode_stack() and (context := torch._guards.TracingContext.try_get()):
        mode = context.fake_mode
    with mode:
        return tensor.__dict__.setdefault(_NO_PIECE, torch.empty(0, dtype=tensor.dtype, device=tensor.device))


# The attribute of a DTensor without pieces on this rank, because a graph needs an input. Setting it does nothing, either.
_EMPTY = property(_no_elements, lambda tensor, piece: None)
_NO_PIECE = "_no_piece"


def names_of_pieces(tensor: torch.Tensor, layout: _C.TensorLayout) -> list[str]:
    """The names of the attributes that hold this rank's pieces; at least one. Registers the move: tracers call this before any operator."""
    register_steps()
    cls = type(tensor)
    if layout.n_pieces == 0:
        if not hasattr(cls, _NO_PIECE):
            setattr(cls, _NO_PIECE, _EMPTY)
        return [_NO_PIECE]
    names = [f"_piece_{i}" for i in range(layout.n_pieces)]
    for i, name in enumerate(names):
        if not hasattr(cls, name):
            setattr(cls, name, _piece_at(i))
    return names


def _is_traced(tensor: torch.Tensor) -> bool:
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def unflatten(pieces: dict[str, torch.Tensor], layout: _C.TensorLayout) -> torch.Tensor:
    """The DTensor of these pieces. It is a traced one if the pieces are a tracer's."""
    values = [piece for name, piece in pieces.items() if name != _NO_PIECE]
    if len(values) > 1:
        values = [*map(static, values)]
    is_traced = _NO_PIECE in pieces and _is_traced(pieces[_NO_PIECE])
    tensor = layout.wrap(values, is_traced)
    if is_traced:
        tensor.__dict__[_NO_PIECE] = pieces[_NO_PIECE]
    return tensor


def static(piece: torch.Tensor) -> torch.Tensor:
    """`piece` with numbers instead of a tracer's symbols for its sizes: layouts consist of numbers."""
    sizes = (*piece.shape, *piece.stride())
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return piece
    fixed = numbers(sizes)
    shape, strides = fixed[: piece.dim()], fixed[piece.dim() :]
    return piece.view(shape) if piece.is_contiguous() else piece.as_strided(shape, strides)


def divides(placements: Sequence[Any], dim: int, n_dims: int) -> bool:
    """Whether a placement divides the dim between ranks."""
    divided = (each for each in placements if not each.is_replicate() and not each.is_partial())
    return any(not each.is_shard() or each.dim % n_dims == dim % n_dims for each in divided)


def with_whole_symbols(piece: torch.Tensor, placements: Sequence[Any] | None) -> torch.Tensor:
    """`piece`, whose symbols are fixed if a placement divides a dim that has one."""
    symbolic = (dim for dim, size in enumerate(piece.shape) if isinstance(size, torch.SymInt))
    return static(piece) if any(divides(placements or (), dim, piece.dim()) for dim in symbolic) else piece


def fixed_symbols() -> int:
    """How many symbols of the program that is being traced are fixed by now, by us or by torch."""
    context = torch._guards.TracingContext.try_get()
    env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    return 0 if env is None else sum(bool(env.replace(symbol).is_number) for symbol in list(env.replacements))


def numbers(sizes: Sequence[int | torch.SymInt]) -> list[int]:
    """Fixes symbols: the graph has a guard from here on."""
    if symbols := [size for size in sizes if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None]:
        _drop_marks(symbols)
    return [int(size) for size in sizes]


def values_of(sizes: Sequence[int | torch.SymInt]) -> list[int]:
    """The sizes in the call that is being traced. Fixes no symbols, except those whose values are unknown."""
    hints = [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]
    return numbers(sizes) if None in hints else [int(hint) for hint in hints]


def _drop_marks(sizes: Sequence[torch.SymInt]) -> None:
    """Drops mark_dynamic() of the graph's inputs for dims that these sizes depend on, and warns: with a mark, torch refuses a fixed size."""
    symbols = set().union(*(size.node.expr.free_symbols for size in sizes))
    waiting: Any = [(each.fake, each.symbolic_context) for each in sizes[0].node.shape_env.tracked_fakes or ()]
    is_dropped = False
    while waiting:
        fake, context = waiting.pop()
        marks: Any = getattr(context, "constraint_sizes", ())
        for dim, mark in enumerate(marks):
            size = fake.shape[dim]
            if mark is not None and isinstance(size, torch.SymInt) and size.node.expr.free_symbols & symbols:
                marks[dim], is_dropped = None, True
        waiting += [(getattr(fake, name), inner) for name, inner in getattr(context, "inner_contexts", {}).items()]
    if is_dropped:
        warnings.warn(f"[mark_dynamic] {NO_SYMBOLS}", stacklevel=2)


@functools.cache
def register_steps() -> None:
    """Registers the operators of moves and calls with torch: the shapes of their results, and that moves and calls keep their order, which is the same on
    all ranks."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    def shapes_of_results(*arguments: Any) -> list[torch.Tensor]:
        *_, pieces, what = arguments
        return [_empty(pieces, *piece) for piece in _C.pieces_of_step(what)]

    start, finish, call = steps()
    torch.library.register_fake(start._name, lambda pieces, what: torch.empty(0, dtype=torch.uint8))
    for op in (finish, call):
        torch.library.register_fake(op._name, shapes_of_results)
    for op in (start, call):
        _register_effectful_op(op, _EffectType.ORDERED)


def _empty(
    operands: Sequence[torch.Tensor],
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A piece of a step's result, with the symbols of the only operand, and dims in the order in memory of `strides`."""
    symbols = operands[0].shape if len(operands) == 1 else ()
    if not any(isinstance(size, torch.SymInt) for size in symbols):
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    order = sorted(range(len(sizes)), key=lambda dim: strides[dim], reverse=True)
    own = [symbol if isinstance(symbol, torch.SymInt) else size for symbol, size in zip(symbols, sizes, strict=True)]
    result = torch.empty([own[dim] for dim in order], dtype=dtype, device=device)
    return result.permute([order.index(dim) for dim in range(len(order))])


@functools.cache
def steps() -> tuple[torch._ops.OpOverload, ...]:
    """The operators of graphs that run as outside of graphs."""
    ours = torch.ops.shardwise
    return (ours.start_move.default, ours.finish_move.default, ours.call.default)


def register_placements() -> None:
    """Makes placements constants of graphs: a graph is valid for the placements it was traced with."""
    _C.Placement.__fx_repr__ = _evaluable  # type: ignore[attr-defined]
    for kind in (_C.Placement, *KINDS):
        register_constant(kind)


def _evaluable(placement: _C.Placement) -> tuple[str, dict[str, Any]]:
    """The code of a placement in a graph, and the names that this code uses."""
    kind, arguments = cast(tuple[type, tuple[Any, ...]], placement.__reduce__())
    return f"{kind.__name__}{arguments!r}", {kind.__name__: kind, "ShardMetadata": _C.ShardMetadata}
