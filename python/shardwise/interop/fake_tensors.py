"""Errors for DTensors under FakeTensorMode, which takes every operator for a plain one and knows no layouts. Use tensors on meta instead."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from shardwise._tracing import register_move
from shardwise.dtensor import DTensor

_WAY_OUT = (
    'Leave the mode and make the tensors on meta, under torch.device("meta") or by x.to("meta"): operators on them give shapes '
    "and layouts, without memory and messages."
)


def dispatch(original: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Makes FakeTensorMode know the shapes of moves, and say why it does not take our tensors; torch's error only names the operator. The error is no TypeError, because `x + 1`
    would replace it by its own."""
    if func is torch.ops.shardwise.move.default:
        register_move()  # a program whose DTensors are made in the graph has called nothing else that registers it
    result = original(self, func, types, args, kwargs)
    if result is NotImplemented and any(map(has_values, tree_leaves((args, kwargs)))):
        raise NotImplementedError(
            f"[{func}] FakeTensorMode does not take DTensors: it would lose their layouts. {_WAY_OUT}"
        )
    return result


def has_values(value: object) -> bool:
    """Whether `value` is a DTensor that no tracer made. A tracer's DTensor has the Python dispatch key, which handles its operators."""
    return isinstance(value, DTensor) and not torch._C._dispatch_keys(value).has(torch._C.DispatchKey.Python)


def refuse(tensor: torch.Tensor) -> None:
    """Raises TypeError for a fake tensor, which cannot become a DTensor or a piece of one."""
    if type(tensor).__name__ == "FakeTensor":
        raise TypeError(f"[DTensor] a FakeTensor of shape {list(tensor.shape)} has no layout. {_WAY_OUT}")
