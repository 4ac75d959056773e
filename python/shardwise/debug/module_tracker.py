"""Tracks where in a model the program is: in which module, in its forward or its backward."""

import sys
from bisect import bisect_right
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement

EVERYTHING = "Global"

Mark = tuple[str, bool]  # a module's path ("Global" outside of modules), and whether gradients are computed


class ModuleTracker:
    """Names modules by their paths below the outermost one, which is named after its class: "MLP.net1".

    `counters`: each returns the number of events of one kind so far. An event belongs to the module that the program was in when it happened. A
    module's backward begins when the gradient of one of its outputs is there. It lasts until another module's backward begins or the pass ends.
    """

    def __init__(self, *counters: Callable[[], int]) -> None:
        self._counters = counters
        self._handles: list[RemovableHandle] = []  # while it is open
        self._thread = 0
        self._clear()

    def _clear(self) -> None:
        self.module_helper_dict: dict[str, dict[str, Any]] = {EVERYTHING: {"depth": 0}}
        self.module_parameters_dict: dict[str, dict[str, torch.Tensor]] = {}
        self.sharding_dict: dict[str, tuple[Placement, ...]] = {}
        self.parent_dict: dict[str, list[str]] = {}
        self._parents: dict[str, str] = {}
        self._paths: dict[int, str] = {}
        self._open: list[str] = []  # the modules that are running
        self._ends: list[RemovableHandle] = []  # the hooks at the ends of modules, also of those that have ended
        self._starts: list[list[int]] = [[0] for _ in self._counters]
        self._marks: list[Mark] = [(EVERYTHING, False)]
        self._tasks: set[int] = set()  # backward passes that run

    def start(self, model: nn.Module | None = None) -> None:
        """Starts to track the modules that run.

        If `model` has compiled modules, only modules of `model` outside of these are tracked: torch.compile would compile the hooks.
        """
        self._clear()
        self._thread = get_ident()  # hooks are the process's, and ranks may be threads
        outside = None if model is None else _outside_of_compiled(model)
        if outside is None:
            self._handles = [register_module_forward_pre_hook(self._enter)]
        else:
            self._handles = [module.register_forward_pre_hook(self._enter, prepend=True) for module in outside]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._open = [], []
        self._remove_ends()

    def mark_of(self, counter: int, event: int) -> Mark:
        """Where the program was when event number `event` of this counter happened."""
        return self._marks[bisect_right(self._starts[counter], event) - 1]

    def intervals(self, counter: int, begin: int, end: int) -> list[tuple[str, bool, int, int]]:
        """Where the program was while this counter went from `begin` to `end`: (path, whether gradients were computed, first, last)."""
        starts = [begin, *self._starts[counter][1:]]
        return [(*mark, first, last) for mark, first, last in zip(self._marks, starts, [*starts[1:], end])]

    def with_parents(self, path: str) -> list[str]:
        """The module and those around it, up to "Global"."""
        result = [path]
        while result[-1] in self._parents:
            result.append(self._parents[result[-1]])
        return result

    @property
    def depth(self) -> int:
        """The number of modules that run, one in the other."""
        return len(self._open)

    def _current(self) -> str:
        return self._open[-1] if self._open else EVERYTHING

    def _remove_ends(self) -> None:
        for handle in self._ends:
            handle.remove()
        self._ends = []

    def _is_seen(self) -> bool:
        """False on other threads, and in a forward that is recomputed for gradients."""
        return get_ident() == self._thread and torch._C._current_graph_task_id() == -1

    def _mark(self, path: str, is_backward: bool) -> None:
        if not self._handles:
            return  # a hook on a tensor that outlived the block
        for starts, count in zip(self._starts, self._counters, strict=True):
            starts.append(count())
        self._marks.append((path, is_backward))

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not self._is_seen():
            return
        if not self._open:
            self._remove_ends()
        path, parent = self._path_of(module), self._current()
        self._describe(module, path, parent)
        depth = len(self._open)
        self._open.append(path)
        self._mark(path, False)
        self._watch(inputs, parent)

        def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
            if not self._is_seen() or self._open[depth:] != [path]:
                return  # a call of the module before or after
            self._open.pop()
            self._mark(self._current(), False)
            self._watch(outputs, path)

        # After the hooks of the module itself, which may communicate.
        self._ends.append(module.register_forward_hook(leave, always_call=True))

    def _watch(self, values: Any, path: str) -> None:
        """Has the backward of the module at `path`, which made `values`, begin when a gradient of them is there. The first call for a tensor counts:
        the output of a layer is also the input of the next one, and may be the output of the model.
        """
        for tensor in tree_leaves(values):
            if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
                continue
            if tensor.grad_fn is not None:  # writing in place gives a tensor another grad_fn
                notes: dict[Any, Any] = tensor.grad_fn.metadata  # type: ignore[assignment]  # torch's stub calls it a function
                seen = notes.setdefault(self, set())
                if tensor.output_nr in seen:
                    continue
                seen.add(tensor.output_nr)
            tensor.register_hook(lambda grad: self._begin_backward(path))

    def _begin_backward(self, path: str) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self._tasks and self._handles:
            self._tasks.add(task)
            before = self._marks[-1]

            def end() -> None:
                self._tasks.discard(task)
                self._mark(*before)

            torch.autograd.Variable._execution_engine.queue_callback(end)
        self._mark(path, True)

    def _path_of(self, module: nn.Module) -> str:
        if not self._open or id(module) not in self._paths:
            name = type(module).__name__
            for path, submodule in module.named_modules():
                self._paths[id(submodule)] = f"{name}.{path}" if path else name
        return self._paths[id(module)]

    def _describe(self, module: nn.Module, path: str, parent: str) -> None:
        if path in self.module_helper_dict:
            return
        self._parents[path] = parent
        self.parent_dict.setdefault(parent, []).append(path)
        told: dict[str, Any] = {"module_type": type(module).__qualname__, "depth": len(self._open) + 1}
        self.module_helper_dict[path] = told
        for name, parameter in module.named_parameters(recurse=False):
            self.module_parameters_dict.setdefault(path, {})[name] = parameter.data
            if isinstance(parameter, DTensor):
                self.sharding_dict[f"{path}.{name}"] = parameter.placements
                told.setdefault("parameters", {})[name] = str(parameter.placements)


def _outside_of_compiled(model: nn.Module) -> list[nn.Module] | None:
    """The modules whose hooks run outside of compiled code; None if nothing in `model` is compiled."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # not there until something is compiled
    if dynamo is None:
        return None
    outside: dict[nn.Module, None] = {}
    has_compiled = False
    to_see = [model]
    while to_see:
        module = to_see.pop()
        is_compiled_in_place = module._compiled_call_impl is not None  # with its own hooks
        is_compiled = is_compiled_in_place or isinstance(module, dynamo.OptimizedModule)
        has_compiled |= is_compiled
        if not is_compiled_in_place and module not in outside:
            outside[module] = None
            to_see += () if is_compiled else module.children()
    return list(outside) if has_compiled else None
