"""The forward of a distributed module, within which plain tensors count as replicas while its plain arguments are the same on all ranks."""

import copyreg
import hashlib
import io
import logging
import sys
import threading
import types
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, KeysView, Mapping, Set, ValuesView
from contextlib import contextmanager
from enum import Enum
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from shardwise import _C
from shardwise.dtensor import DTensor

__all__ = ["enters_last", "forward_of", "open_around_forward", "plain_arguments"]

Argument = tuple[str, torch.Tensor | None, str]  # where it stands, the tensor, or the text of what is none

_VALUES = (bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), np.generic, Fraction, Enum)
_NAMES = (torch.dtype, torch.layout, torch.memory_format)
# What holds no values of a batch, or is each rank's own.
_OPAQUE = (
    torch.device, torch.Stream, torch.Event, dist.ProcessGroup, TorchMesh, types.ModuleType, logging.Logger, logging.Handler,
    io.IOBase, threading.Thread, type(threading.Lock()), type(threading.RLock()), weakref.ReferenceType,
)  # fmt: skip
# The id of both hooks in every module, as torch would give it: torch.compile makes one graph for modules whose hooks have the same ids.
_HOOK_ID = RemovableHandle(OrderedDict()).id
# Modules that have opened a scope, which C++ knows by their ids.
_opened = WeakIdKeyDictionary()
# In the place of what cannot be looked into: it has no values to compare.
_UNKNOWN = torch.empty(0, device="meta")


def open_around_forward(module: nn.Module) -> None:
    """From now on calls of `module`, and of those of its submodules that have DTensors, open a scope for the time of their forward;
    within an open one they join it. Pre-hooks run before, whenever they are registered, and may wrap arguments."""
    for submodule in module.modules():
        tensors = chain(submodule.parameters(), submodule.buffers())
        if not any(isinstance(tensor, DTensor) for tensor in tensors):
            continue
        if not enters_last(submodule):
            submodule._forward_pre_hooks[_HOOK_ID] = _enter
            submodule._forward_pre_hooks_with_kwargs[_HOOK_ID] = True
            submodule._forward_hooks[_HOOK_ID] = _leave
            submodule._forward_hooks_always_called[_HOOK_ID] = True


def enters_last(module: nn.Module) -> bool:
    """Puts the hook that opens a scope behind the module's other pre-hooks. False where it has none."""
    hooks = module._forward_pre_hooks
    known = next((key for key, hook in hooks.items() if hook is _enter), None)
    if known is not None:
        hooks[known] = hooks.pop(known)
    return known is not None


@contextmanager
def forward_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """A `with` block as if it were the module's forward, called with these arguments."""
    _open(module, args, kwargs, None)
    try:
        yield
    finally:
        _leave(module, args, None)


# Functions of this module, so that modules with these hooks can be copied and pickled.


def _enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if (
        torch.compiler.is_compiling()
    ):  # plain tensors next to DTensors then break the graph: what they hold is not known yet
        return
    # torch calls _leave after an Exception, not after a KeyboardInterrupt: the scope ends with the frame of the call.
    _open(module, args, kwargs, sys._getframe(1))


def _open(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType | None) -> None:
    if not _C.join_forward(id(module)):
        if module not in _opened:
            weakref.finalize(module, _C.forget_forward, id(module)).atexit = False
            _opened[module] = True
        _C.open_forward(id(module), type(module).__name__, list(plain_arguments(args, kwargs)), frame)


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    _C.leave_forward(id(module))


def plain_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Argument]:
    """What the ranks compare of a call's arguments: tensors, arrays, numbers and text, wherever they are. What cannot be looked into, as a
    generator, counts as unequal."""
    seen: dict[int, Any] = {}  # by id, and held: a new object would get the id of one that is gone
    for i, value in enumerate(args):
        yield from _held(f"args[{i}]", value, seen)
    for name, value in kwargs.items():
        yield from _held(name, value, seen)


def _held(path: str, value: Any, seen: dict[int, Any]) -> Iterator[Argument]:
    if isinstance(value, torch.Tensor):
        if not isinstance(value, DTensor):
            yield path, value, ""
    elif isinstance(value, _VALUES):
        yield path, None, repr(value)
    elif isinstance(value, _NAMES):
        yield path, None, str(value)
    elif isinstance(value, type):
        yield path, None, f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, np.ndarray):
        yield path, None, _text_of(value)
    elif isinstance(value, torch.Generator):
        yield path, value.get_state(), ""
    elif not isinstance(value, _OPAQUE) and id(value) not in seen:
        seen[id(value)] = value
        yield from _held_by(path, value, seen)


def _held_by(path: str, holder: Any, seen: dict[int, Any]) -> Iterator[Argument]:
    if isinstance(holder, (list, tuple, deque, KeysView, ValuesView)):
        if all(isinstance(value, _VALUES) for value in holder):
            yield path, None, repr([*holder])
            return
        for i, value in enumerate(holder):
            yield from _held(f"{path}[{i}]", value, seen)
    elif isinstance(holder, Mapping):
        for key, value in holder.items():
            yield from _held(f"{path}[{key!r}]", value, seen)
    elif isinstance(holder, Set):
        if all(isinstance(value, (*_VALUES, *_NAMES, type)) for value in holder):
            yield path, None, repr(sorted(map(repr, holder)))
        else:
            yield _unknown(path, holder)
    elif isinstance(holder, nn.Module):
        for name, tensor in chain(holder.named_parameters(), holder.named_buffers()):
            yield from _held(f"{path}.{name}", tensor, seen)
    elif isinstance(holder, _CALLABLES):
        yield from _held_by_callable(path, holder, seen)
    else:
        yield from _held_by_object(path, holder, seen)


_CALLABLES = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CodeType, partial)


def _held_by_callable(path: str, value: Any, seen: dict[int, Any]) -> Iterator[Argument]:
    """What it computes with, but for globals."""
    if isinstance(value, partial):
        yield from _held(path, (value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.CodeType):
        yield path, None, f"{value.co_name} {hashlib.blake2b(value.co_code, digest_size=16).hexdigest()}"
        yield from _held(path, value.co_consts, seen)
    elif isinstance(value, types.FunctionType):
        yield from _held(path, value.__code__, seen)
        yield from _held(path, (value.__defaults__, value.__kwdefaults__), seen)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                inside = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            yield from _held(f"{path}.{name}", inside, seen)
    else:
        yield path, None, value.__qualname__
        yield from _held(path, value.__self__, seen)
        if isinstance(value, types.MethodType):
            yield from _held(path, value.__func__, seen)


def _held_by_object(path: str, value: Any, seen: dict[int, Any]) -> Iterator[Argument]:
    attributes = dict(_attributes(value))
    for name, attribute in attributes.items():
        yield from _held(f"{path}.{name}", attribute, seen)
    if attributes and not _has_reduction(value):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # itertools warn that they will stop
            parts = _reduction(value)
    except Exception:  # as the library likes, for what cannot be copied
        yield _unknown(path, value)
        return
    yield from _held(path, parts, seen)


def _has_reduction(value: Any) -> bool:
    """True where its class says itself what a copy is made of."""
    owners = type(value).__mro__[:-1]
    return type(value) in copyreg.dispatch_table or any(
        name in vars(owner) for owner in owners for name in ("__reduce__", "__reduce_ex__")
    )


def _reduction(value: Any) -> Any:
    """What a copy of `value` would be made of, as pickle has it; iterators are not advanced."""
    reduce = copyreg.dispatch_table.get(type(value))
    parts = reduce(value) if reduce else value.__reduce_ex__(4)
    if isinstance(parts, str):
        return parts
    return (*parts[:3], *(list(items) for items in parts[3:5] if items is not None))


def _unknown(path: str, value: Any) -> Argument:
    return f"{path} ({type(value).__name__})", _UNKNOWN, ""


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
