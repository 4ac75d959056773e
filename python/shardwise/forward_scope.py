"""The forward of a distributed module, within which plain tensors count as replicas while its plain arguments are the same on all ranks."""

import hashlib
from collections import deque
from collections.abc import Iterator, KeysView, Mapping, Set, ValuesView
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from shardwise import _C
from shardwise.dtensor import DTensor

__all__ = ["forward_of", "open_around_forward", "plain_arguments"]

Argument = tuple[str, torch.Tensor | None, str]  # where it stands, the tensor, or the text of what is none

_VALUES = (bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), np.generic, Fraction, Enum)
_OPAQUE = (nn.Module, type, torch.device, torch.dtype, torch.Generator)


def open_around_forward(module: nn.Module) -> None:
    """From now on calls of `module`, and of those of its submodules that have DTensors, open a scope for the time of their forward;
    within an open one they join it. Hooks that are there already run before, and may wrap arguments."""
    for submodule in module.modules():
        tensors = chain(submodule.parameters(), submodule.buffers())
        if not any(isinstance(tensor, DTensor) for tensor in tensors):
            continue
        hooks = submodule._forward_pre_hooks
        known = next((key for key, hook in hooks.items() if hook is _enter), None)
        if known is None:
            submodule.register_forward_pre_hook(_enter, with_kwargs=True)
            submodule.register_forward_hook(_leave, always_call=True)
        else:
            hooks[known] = hooks.pop(known)  # to the end


@contextmanager
def forward_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """A `with` block as if it were the module's forward, called with these arguments."""
    _enter(module, args, kwargs)
    try:
        yield
    finally:
        _leave(module, args, None)


# Functions of this module, so that modules with these hooks can be copied and pickled.


def _enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _C.join_forward(id(module)):
        _C.open_forward(id(module), type(module).__name__, list(plain_arguments(args, kwargs)))


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    _C.leave_forward(id(module))


def plain_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Argument]:
    """What the ranks compare of a call's arguments: tensors and arrays, wherever they are; numbers and text in containers."""
    seen: dict[int, Any] = {}  # by id, and held: a new object would get the id of one that is gone
    for i, value in enumerate(args):
        yield from _held(f"args[{i}]", value, seen, with_values=True)
    for name, value in kwargs.items():
        yield from _held(name, value, seen, with_values=True)


def _held(path: str, value: Any, seen: dict[int, Any], with_values: bool) -> Iterator[Argument]:
    """`with_values`: numbers and text count; in attributes of objects of other libraries they do not, which may be a rank's own."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, DTensor):
            yield path, value, ""
    elif isinstance(value, _VALUES):
        if with_values:
            yield path, None, repr(value)
    elif isinstance(value, np.ndarray):
        yield path, None, _text_of(value)
    elif not isinstance(value, _OPAQUE) and id(value) not in seen:
        seen[id(value)] = value
        yield from _held_by(path, value, seen, with_values)


def _held_by(path: str, holder: Any, seen: dict[int, Any], with_values: bool) -> Iterator[Argument]:
    if isinstance(holder, (list, tuple, deque, KeysView, ValuesView)):
        if all(isinstance(value, _VALUES) for value in holder):
            if with_values:
                yield path, None, repr([*holder])
            return
        for i, value in enumerate(holder):
            yield from _held(f"{path}[{i}]", value, seen, with_values)
    elif isinstance(holder, Mapping):
        for key, value in holder.items():
            yield from _held(f"{path}[{key!r}]", value, seen, with_values)
    elif isinstance(holder, Set):
        if with_values:
            yield path, None, repr(sorted(map(repr, holder)))
    elif is_dataclass(holder):
        for field in fields(holder):
            yield from _held(f"{path}.{field.name}", getattr(holder, field.name, None), seen, with_values)
    else:
        for name, value in _attributes(holder):
            yield from _held(f"{path}.{name}", value, seen, with_values=False)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for owner in type(value).__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _text_of(array: "np.ndarray[Any, Any]") -> str:
    values = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return f"{array.dtype} {array.shape} {hashlib.blake2b(values, digest_size=16).hexdigest()}"
