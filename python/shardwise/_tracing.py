"""What torch's tracers (torch.compile, torch.export, make_fx) see of DTensors: pieces, operators on them, and moves between ranks.

A tracer takes a DTensor apart into this rank's pieces and its TensorLayout, and puts one together of pieces of its own, which have no
values. Operators of such a tensor come to `run_traced`, which answers them as those of any DTensor: so each operator on a piece, and one
`shardwise::move` per redistribution, become part of the graph. What would send anything else raises NotImplementedError.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

from shardwise import _C
from shardwise._torch_versions import register_constant
from shardwise.placement_types import KINDS

_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse2)
# What a tracer says of a tensor whose memory is read.
_NO_VALUES = ("data pointer", "doesn't have storage", "data_ptr")


def run_traced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator of traced DTensors. Raises NotImplementedError where it needs values."""
    _register_move()
    arguments = func._schema.arguments
    args = tuple(map(_operand, arguments, args))
    kwargs = {each.name: _operand(each, kwargs[each.name]) for each in arguments if each.name in kwargs}
    try:
        return func.redispatch(_KERNELS, *args, **kwargs)
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_VALUES):
            raise NotImplementedError(
                f"[{func}] reads the values of its operands, and a traced program has none. Keep it outside of what is "
                "traced with torch.compiler.disable, or let torch.compile break the graph here."
            ) from error
        raise


def _operand(argument: Any, value: Any) -> Any:
    """torch gives a number where a program wrote one, and kernels take tensors."""
    is_number = isinstance(value, (int, float, complex)) and isinstance(argument.type, torch.TensorType)
    return _C.wrapped_number(value) if is_number else value


class Piece:
    """The attribute of a DTensor that is this rank's i-th piece."""

    def __init__(self, i: int) -> None:
        self._i = i

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        return self if tensor is None else _C.piece_at(tensor, self._i)

    def __set__(self, tensor: Any, piece: torch.Tensor) -> None:
        """torch sets a gradient's piece whose memory it has arranged as the graph wants it, and goes on with that piece: nothing is
        to be done here."""


class NoPiece:
    """What stands for the pieces where this rank has none: an empty tensor, so that graphs have something to be given."""

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        return self if tensor is None else torch.empty(0, dtype=tensor.dtype, device=tensor.device)


_NO_PIECE = "_no_piece"


def names_of_pieces(tensor: torch.Tensor, layout: _C.TensorLayout) -> list[str]:
    """The names of the attributes that hold this rank's pieces; at least one. Tracers ask before all else: a move may come first."""
    _register_move()
    cls = type(tensor)
    if layout.n_pieces == 0:
        if torch._guards.TracingContext.try_get() is not None and not _is_traced(tensor):
            _leave_to_eager(layout)
        if not hasattr(cls, _NO_PIECE):
            setattr(cls, _NO_PIECE, NoPiece())
        return [_NO_PIECE]
    names = [f"_piece_{i}" for i in range(layout.n_pieces)]
    for i, name in enumerate(names):
        if not hasattr(cls, name):
            setattr(cls, name, Piece(i))
    return names


def _leave_to_eager(layout: _C.TensorLayout) -> None:
    """Has torch.compile run the function as it is written: there is nothing to compile. Raises what says so with fullgraph=True."""
    from torch._dynamo.exc import unimplemented

    unimplemented(
        gb_type="DTensor without pieces on this rank",
        context=str(layout),
        explanation="This rank is outside of the tensor's mesh and computes nothing with it.",
        hints=["Call the compiled function on the ranks of the mesh only.", "Leave out fullgraph=True."],
        skip_frame=True,
    )


def _is_traced(tensor: torch.Tensor) -> bool:
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def unflatten(pieces: dict[str, torch.Tensor], layout: _C.TensorLayout) -> torch.Tensor:
    """The DTensor of these pieces: a traced one of a tracer's pieces."""
    values = [static(piece) for name, piece in pieces.items() if name != _NO_PIECE]
    is_traced = _NO_PIECE in pieces and _is_traced(pieces[_NO_PIECE])
    return layout.wrap(values, is_traced)


def static(piece: torch.Tensor) -> torch.Tensor:
    """`piece`, with numbers where a tracer has symbols for its sizes: a layout is known in numbers."""
    sizes = (*piece.shape, *piece.stride())
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return piece
    numbers = [int(size) for size in sizes]  # a guard of the graph from here on
    shape, strides = numbers[: piece.dim()], numbers[piece.dim() :]
    return piece.view(shape) if piece.is_contiguous() else piece.as_strided(shape, strides)


def refuse_cache() -> Any:
    """Raises BypassAOTAutogradCache: a graph's DTensors are of this process's meshes."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    raise BypassAOTAutogradCache("graphs of DTensors are for the meshes of the process that traced them")


_is_move_registered = False


def _register_move() -> None:
    """Tells torch of `shardwise::move`: what it gives, and that its calls keep their order, which is the same on all ranks."""
    global _is_move_registered
    if _is_move_registered:
        return
    _is_move_registered = True
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    @torch.library.register_fake("shardwise::move")  # type: ignore[untyped-decorator]
    def shapes_of_move(pieces: Sequence[torch.Tensor], what: str) -> list[torch.Tensor]:
        return [
            torch.empty_strided(sizes, strides, dtype=dtype, device=device)
            for sizes, strides, dtype, device in _C.pieces_of_move(what)
        ]

    _register_effectful_op(torch.ops.shardwise.move.default, _EffectType.ORDERED)


def register_placements() -> None:
    """Makes placements constants of graphs: a graph is for the placements that it was made with."""
    _C.Placement.__fx_repr__ = _evaluable  # type: ignore[attr-defined]
    for kind in (_C.Placement, *KINDS):
        register_constant(kind)


def _evaluable(placement: _C.Placement) -> tuple[str, dict[str, Any]]:
    """What a graph's code says of it, and the names in that."""
    kind, arguments = cast(tuple[type, tuple[Any, ...]], placement.__reduce__())
    return f"{kind.__name__}{arguments!r}", {kind.__name__: kind, "ShardMetadata": _C.ShardMetadata}
