"""Errors for DTensors under torch's modes: FakeTensorMode takes every operator for a plain one and knows no layouts (use tensors on meta instead), and
a graph of make_fx or torch.export with whole DTensors has neither their pieces nor the moves between ranks."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from shardwise._tracing import register_steps, steps
from shardwise.dtensor import DTensor

_NOT_IN_GRAPH = (
    "Move DTensors before or after what make_fx or torch.export trace, or use torch.compile, whose graphs have the pieces and their "
    "moves."
)
_WAY_OUT = (
    'Leave the mode and make the tensors on meta, under torch.device("meta") or by x.to("meta"): operators on them give shapes '
    "and layouts, without memory and messages."
)


def dispatch(original: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Makes FakeTensorMode know the shapes of moves, and say why it does not take our tensors; torch's error only names the operator. The error
    is no TypeError, because `x + 1` would replace it by its own."""
    if func in steps():
        register_steps()  # a program whose DTensors are made in the graph has called nothing else that registers it
    result = original(self, func, types, args, kwargs)
    if result is NotImplemented and any(map(has_values, tree_leaves((args, kwargs)))):
        raise NotImplementedError(
            f"[{func}] FakeTensorMode does not take DTensors: it would lose their layouts. {_WAY_OUT}"
        )
    return result


def dispatch_in_graph(original: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Makes ProxyTorchDispatchMode raise an error for operators that cannot be in a graph of whole DTensors."""
    from torch.fx.experimental.proxy_tensor import has_proxy_slot

    if func in steps() and any(
        type(piece).__name__ == "FakeTensor" and not has_proxy_slot(piece, mode.tracer)
        for piece in tree_leaves(args[0])
    ):
        raise NotImplementedError(f"[redistribute] cannot be part of a graph of whole DTensors. {_NOT_IN_GRAPH}")
    result = original(mode, func, types, args, kwargs)
    if result is NotImplemented and any(map(has_values, tree_leaves((args, kwargs)))):
        raise NotImplementedError(
            f"[{func}] takes a DTensor that was not made in the graph, such as the result of a move. {_NOT_IN_GRAPH}"
        )
    return result


def has_values(value: object) -> bool:
    """Whether `value` is a DTensor that no tracer made. A tracer's DTensor has the Python dispatch key, which handles its operators."""
    return isinstance(value, DTensor) and not torch._C._dispatch_keys(value).has(torch._C.DispatchKey.Python)


def refuse(tensor: torch.Tensor) -> None:
    """Raises TypeError for a fake tensor, which cannot become a DTensor or a piece of one."""
    if type(tensor).__name__ == "FakeTensor":
        raise TypeError(f"[DTensor] a FakeTensor of shape {list(tensor.shape)} has no layout. {_WAY_OUT}")
