"""torch's own local_map, given our tensors: it would hand a function the whole DTensor where it means this rank's piece."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.experimental import local_map


def teach(module: ModuleType) -> None:
    """Calls with our tensors are calls of shardwise.experimental.local_map."""
    functions = vars(module)
    if "_local_map_wrapped" in functions:
        functions["_local_map_wrapped"] = _mapping(functions["_local_map_wrapped"], functions["DTensor"])


def _mapping(original: Any, torchs: type) -> Any:
    @functools.wraps(original)
    def mapped(
        func: Any,
        out_placements: Any,
        in_placements: Any,
        in_grad_placements: Any,
        device_mesh: Any,
        redistribute_inputs: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        options = (out_placements, in_placements, in_grad_placements, device_mesh)
        values = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(value, DTensor) for value in values):
            return original(func, *options, redistribute_inputs, *args, **kwargs)
        if any(isinstance(value, torchs) for value in values):
            raise TypeError(
                "[local_map] got DTensors of Shardwise and of torch.distributed.tensor together. Convert the latter with "
                "shardwise.from_torch."
            )
        return local_map(func, *options, redistribute_inputs=redistribute_inputs)(*args, **kwargs)

    return mapped
