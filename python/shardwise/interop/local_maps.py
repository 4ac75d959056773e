"""torch's own local_map, given our tensors: it would hand a function the whole DTensor where it means this rank's piece."""

import functools
from inspect import signature
from typing import Any

from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.experimental import local_map
from shardwise.interop.torch_tensors import is_torch_dtensor


def mapped(original: Any, *given: Any, **kwargs: Any) -> Any:
    """Calls with our tensors are calls of shardwise.experimental.local_map."""
    names = _names(original)
    options, args = dict(zip(names, given, strict=False)), given[len(names) :]
    values = pytree.tree_leaves((args, kwargs))
    if not any(isinstance(value, DTensor) for value in values):
        return original(*given, **kwargs)
    if any(map(is_torch_dtensor, values)):
        raise TypeError(
            "[local_map] got DTensors of Shardwise and of torch.distributed.tensor together. Convert the latter with "
            "shardwise.from_torch."
        )
    options.pop("enable_spmd_types", None)  # torch 2.14: only has annotations of the function's results compared
    return local_map(**options)(*args, **kwargs)


@functools.cache
def _names(original: Any) -> list[str]:
    return [each.name for each in signature(original).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
