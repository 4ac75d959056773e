"""DTensors under torch's tracers (torch.compile, torch.export, make_fx): graphs have operators on pieces, and moves between ranks.

A tracer takes a DTensor apart into this rank's pieces and its TensorLayout, and builds a DTensor of its own pieces, which have no values.
`run_traced` runs operators on such a tensor as on any DTensor. So the graph gets each operator on a piece, a `shardwise::start_move` and a
`shardwise::finish_move` per redistribution, and one `shardwise::call` for other steps that need values, such as a draw of random numbers. An
operator whose sizes or messages depend on values raises NotImplementedError.
"""

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from shardwise import _C, _symbols
from shardwise._torch_versions import register_constant
from shardwise.placement_types import KINDS

_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse2)
# Words of the errors that a tracer raises if the memory of a tensor is read.
_NO_VALUES = ("data pointer", "doesn't have storage", "data_ptr", "data is not allocated")


def run_traced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator on traced DTensors. Raises NotImplementedError if it needs values."""
    register_steps()
    func = _symbols.with_number(func, args)
    arguments = func._schema.arguments
    args = tuple(map(_operand, arguments, args))
    kwargs = {each.name: _operand(each, kwargs[each.name]) for each in arguments if each.name in kwargs}
    try:
        scope, args, kwargs = _symbols.settled(func, args, kwargs)
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
        if type(error).__name__ == "GuardOnDataDependentSymNode":
            raise NotImplementedError(
                f"[{func}] has a result whose sizes depend on values, but a traced program has no values. Use torch.compiler.disable to "
                "exclude it from tracing, or let torch.compile break the graph here."
            ) from error
        raise


def _operand(argument: Any, value: Any) -> Any:
    """`value`, as a tensor if it is a number in the place of a tensor: kernels take tensors."""
    if not isinstance(argument.type, torch.TensorType):
        return value
    if isinstance(value, torch.SymInt):
        value = _symbols.fixed([value])[0]
    elif isinstance(value, torch.SymFloat):
        value = float(value)
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
        values = [*map(_symbols.with_numbers, values)]
    is_traced = _NO_PIECE in pieces and _is_traced(pieces[_NO_PIECE])
    tensor = layout.wrap(values, is_traced)
    if is_traced:
        tensor.__dict__[_NO_PIECE] = pieces[_NO_PIECE]
    return tensor


@functools.cache
def register_steps() -> None:
    """Registers the operators of moves and calls with torch: the shapes of their results, and that moves and calls keep their order, which is the same on
    all ranks."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    def order() -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def results(pieces: Sequence[torch.Tensor], what: str) -> list[torch.Tensor]:
        return [_empty(pieces, *piece) for piece in _C.pieces_of_step(what)]

    start, finish, call = steps()
    torch.library.register_fake(start._name, lambda pieces, what, after=None: order())
    torch.library.register_fake(finish._name, lambda started, pieces, what: results(pieces, what))
    torch.library.register_fake(call._name, lambda pieces, what, after=None: [*results(pieces, what), order()])
    for op in (start, call):
        _register_effectful_op(op, _EffectType.ORDERED)


def _empty(
    operands: Sequence[torch.Tensor],
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A piece of a step's result, with the symbols of the first operand, and dims in the order in memory of `strides`."""
    symbols = operands[0].shape if operands else ()
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
