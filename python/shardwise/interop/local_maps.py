"""torch's local_map with our tensors: by itself it would give the function whole DTensors instead of this rank's pieces."""

import functools
from inspect import signature
from typing import Any

from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.experimental import local_map
from shardwise.interop.torch_tensors import is_torch_dtensor


def mapped(original: Any, *given: Any, **kwargs: Any) -> Any:
    """Calls shardwise.experimental.local_map() if an argument is one of our tensors."""
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
    options.pop("enable_spmd_types", None)  # torch 2.14: it only makes torch compare annotations of the results
    return local_map(**options)(*args, **kwargs)


@functools.cache
def _names(original: Any) -> list[str]:
    return [each.name for each in signature(original).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
