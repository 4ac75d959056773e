"""make_fx and torch.export: a graph that has DTensors whole knows nothing of their pieces, and so none of the moves between ranks."""

import functools
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from shardwise.interop.fake_tensors import has_values

__all__ = ["teach"]

_WAY_OUT = (
    "Move DTensors before or after what make_fx or torch.export trace, or use torch.compile, whose graphs have the pieces and their "
    "moves."
)


def teach(module: ModuleType) -> None:
    """Has torch.fx.experimental.proxy_tensor say what has no place in a graph of whole DTensors."""
    mode = module.ProxyTorchDispatchMode
    original = mode.__torch_dispatch__

    @functools.wraps(original)
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.shardwise.move.default and any(
            not module.has_proxy_slot(piece, self.tracer) for piece in tree_leaves(args[0]) if _is_fake(piece)
        ):
            raise NotImplementedError(f"[redistribute] has no place in a graph of whole DTensors. {_WAY_OUT}")
        result = original(self, func, types, args, kwargs)
        if result is NotImplemented and any(map(has_values, tree_leaves((args, kwargs)))):
            raise NotImplementedError(
                f"[{func}] takes a DTensor that the graph did not make, as a move does. {_WAY_OUT}"
            )
        return result

    mode.__torch_dispatch__ = dispatch


def _is_fake(piece: object) -> bool:
    return type(piece).__name__ == "FakeTensor"
