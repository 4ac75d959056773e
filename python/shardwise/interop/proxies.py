"""Errors for make_fx and torch.export: a graph with whole DTensors has neither their pieces nor the moves between ranks."""

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import has_proxy_slot
from torch.utils._pytree import tree_leaves

from shardwise.interop.fake_tensors import has_values

_WAY_OUT = (
    "Move DTensors before or after what make_fx or torch.export trace, or use torch.compile, whose graphs have the pieces and their "
    "moves."
)


def dispatch(original: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Makes ProxyTorchDispatchMode raise an error for operators that cannot be in a graph of whole DTensors."""
    if func is torch.ops.shardwise.move.default and any(
        type(piece).__name__ == "FakeTensor" and not has_proxy_slot(piece, mode.tracer)
        for piece in tree_leaves(args[0])
    ):
        raise NotImplementedError(f"[redistribute] cannot be part of a graph of whole DTensors. {_WAY_OUT}")
    result = original(mode, func, types, args, kwargs)
    if result is NotImplemented and any(map(has_values, tree_leaves((args, kwargs)))):
        raise NotImplementedError(
            f"[{func}] takes a DTensor that was not made in the graph, such as the result of a move. {_WAY_OUT}"
        )
    return result
