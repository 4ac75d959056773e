"""The tensors in the inputs and outputs of modules: in nested sequences, mappings and dataclasses."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in `value`, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def differentiated(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """`tensors`, then their tangents, and the tensors that transforms of torch.func wrap in any of these. Each may have a graph of its own."""
    has_tangents = forward_ad._current_level >= 0
    is_transformed = torch._C._are_functorch_transforms_active()
    if not (has_tangents or is_transformed):
        return tensors
    result = list(tensors)
    for tensor in result:  # which grows
        if has_tangents and (tangent := forward_ad.unpack_dual(tensor).tangent) is not None:
            result.append(tangent)
        if is_transformed and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            result.append(torch._C._functorch.get_unwrapped(tensor))
    return result


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating-point tensors in `dtype`; `value` itself if all are."""
    return replaced(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def replaced(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with each tensor replaced by `function(tensor)`; `value` itself if none changes."""
    if isinstance(value, torch.Tensor):
        return function(value)
    is_mapping, is_collection = isinstance(value, Mapping), isinstance(value, list | tuple | set | frozenset)
    if is_mapping or is_collection:
        given: dict[Any, Any] = dict(value.items() if is_mapping else enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        return value
    changed = {key: replaced(item, function) for key, item in given.items()}
    if all(changed[key] is item for key, item in given.items()):
        return value
    if is_collection:
        return type(value)(*changed.values()) if hasattr(value, "_fields") else type(value)(changed.values())
    result: Any = copy.copy(value)
    for key, item in changed.items():
        if is_mapping:
            result[key] = item
        else:
            object.__setattr__(result, key, item)
    return result
