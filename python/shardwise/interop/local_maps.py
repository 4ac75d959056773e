"""torch's own local_map, given our tensors: it would hand a function the whole DTensor where it means this rank's piece."""

from __future__ import annotations

import functools
from inspect import signature
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
    names = [each.name for each in signature(original).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]

    @functools.wraps(original)
    def mapped(*given: Any, **kwargs: Any) -> Any:
        options, args = dict(zip(names, given, strict=False)), given[len(names) :]
        values = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(value, DTensor) for value in values):
            return original(*given, **kwargs)
        if any(isinstance(value, torchs) for value in values):
            raise TypeError(
                "[local_map] got DTensors of Shardwise and of torch.distributed.tensor together. Convert the latter with "
                "shardwise.from_torch."
            )
        options.pop("enable_spmd_types", None)  # torch 2.14: only has annotations of the function's results compared
        return local_map(**options)(*args, **kwargs)

    return mapped
