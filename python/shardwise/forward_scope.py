"""The forward of a distributed module, within which plain tensors count as replicas."""

import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from shardwise import _C
from shardwise.dtensor import DTensor
from shardwise.module_tensors import submodules_of

# The path of an argument, and the tensor, or the type and text of the number.
Argument = tuple[str, torch.Tensor | None, str, str]

# The key of both hooks in every module. torch.compile shares a graph between modules whose hooks have the same keys.
_HOOK_ID = RemovableHandle(OrderedDict()).id
_compared = WeakIdKeyDictionary()  # the _C.ComparedCalls of modules


def open_around_forward(module: nn.Module) -> None:
    """Makes the forwards of `module` and of its submodules that have DTensors open a scope, or join the open one.

    The ranks of the meshes of these DTensors compare the plain arguments of the call that opens a scope. Other pre-hooks run before that, whenever
    they were registered, and may wrap arguments.
    """
    known: dict[int, dict[Any, torch.Tensor]] = {}
    for submodule in submodules_of(module):
        tensors = _by_mesh(submodule, known)
        if not tensors:
            continue
        _compared[submodule] = _C.ComparedCalls(list(tensors.values()))
        if not enters_last(submodule):
            submodule._forward_pre_hooks[_HOOK_ID] = _enter
            submodule._forward_pre_hooks_with_kwargs[_HOOK_ID] = True
            submodule._forward_hooks[_HOOK_ID] = _leave
            submodule._forward_hooks_always_called[_HOOK_ID] = True


def _by_mesh(module: nn.Module, known: dict[int, dict[Any, torch.Tensor]]) -> dict[Any, torch.Tensor]:
    """A DTensor on each mesh on which the module or a submodule has some. `known` has the results for other modules, by id."""
    if id(module) not in known:
        tensors = chain(module._parameters.values(), module._buffers.values())
        known[id(module)] = {each.device_mesh: each for each in tensors if isinstance(each, DTensor)}
        for child in module._modules.values():
            if child is not None:
                known[id(module)].update(_by_mesh(child, known))
    return known[id(module)]


def enters_last(module: nn.Module) -> bool:
    """Moves the hook that opens a scope behind the module's other pre-hooks. False if the module has no such hook."""
    hooks = module._forward_pre_hooks
    known = [key for key, hook in hooks.items() if hook is _enter]
    for key in known:
        hooks[key] = hooks.pop(key)
    return bool(known)


@contextmanager
def forward_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """A `with` block that counts as the module's forward, called with these arguments."""
    _open(module, args, kwargs, None)
    try:
        yield
    finally:
        _leave(module, args, None)


# The hooks are module-level functions, so that modules that have them can be copied and pickled.


def _enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if torch.compiler.is_compiling():  # plain tensors next to DTensors then break the graph
        return
    # torch does not call _leave after a KeyboardInterrupt, so the scope also ends with the frame of the call.
    _open(module, args, kwargs, sys._getframe(1))


def _open(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType | None) -> None:
    if _C.join_forward(id(module)):
        return
    if module not in _compared:  # a copy of one that was distributed
        _compared[module] = _C.ComparedCalls(list(_by_mesh(module, {}).values()))
    _C.open_forward(id(module), type(module).__name__, _compared[module], plain_arguments(args, kwargs), frame)


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        _C.leave_forward(id(module))


def plain_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Argument]:
    """The plain tensors and numbers among the first _C.MOST_ARGUMENTS values of a call, in its tuples, lists, dicts and dataclasses."""
    found: list[Argument] = []
    waiting = [*((f"args[{i}]", value) for i, value in enumerate(args)), *kwargs.items()][::-1]
    for _ in range(_C.MOST_ARGUMENTS):
        if not waiting:
            break
        path, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            if not isinstance(value, DTensor):
                found.append((path, value, "", ""))
        elif isinstance(value, (int, float, complex)):
            found.append((path, None, type(value).__name__, _text(value)))
        else:
            waiting += [*islice(_inside(path, value), _C.MOST_ARGUMENTS)][::-1]
    return found


def _inside(path: str, holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, (list, tuple)):
        return ((f"{path}[{i}]", value) for i, value in enumerate(holder))
    if isinstance(holder, dict):
        # The repr of other keys may contain an address, which differs between ranks.
        names = (repr(key) if isinstance(key, (str, int)) else f"#{i}" for i, key in enumerate(holder))
        return ((f"{path}[{name}]", value) for name, value in zip(names, holder.values(), strict=True))
    if is_dataclass(holder) and not isinstance(holder, type):
        return ((f"{path}.{each.name}", getattr(holder, each.name, None)) for each in fields(holder))
    return iter(())


def _text(number: complex) -> str:
    """A text that is equal for equal bits only, except for NaNs. Cost: linear in the number of digits, unlike repr()."""
    if isinstance(number, int):
        return int.__format__(number, "x")
    return float.hex(number) if isinstance(number, float) else complex.__repr__(number)
