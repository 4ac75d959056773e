"""Modules of torch that are imported while Shardwise's names are installed: they work on torch's own tensors, and get torch's names."""

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from shardwise.compat.earlier_bindings import is_torchs


class TorchsImports(MetaPathFinder):
    """Finds what the other finders find. `suspend()` is called before the code of a module of torch runs, `resume()` after it."""

    def __init__(self, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        self._suspend, self._resume = suspend, resume
        self._lock = threading.RLock()
        self._depth = 0
        self._looking = threading.local()

    def start(self) -> None:
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_torchs(fullname) or getattr(self._looking, "name", None) == fullname:
            return None
        before = getattr(self._looking, "name", None)
        self._looking.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.name = before
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_with_torchs_names(module: ModuleType) -> None:
            loader.exec_module = execute
            self._enter()
            try:
                execute(module)
            finally:
                self._leave()

        loader.exec_module = execute_with_torchs_names
        return spec

    def _enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._suspend()

    def _leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._resume()
