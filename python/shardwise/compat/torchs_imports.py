"""Gives torch's own names to modules of torch that are imported while Shardwise's names are installed."""

import sys
import threading
from collections.abc import Callable
from types import ModuleType

from shardwise.compat.earlier_bindings import is_torchs
from shardwise.interop.when_imported import Action, AroundImports


class TorchsImports(AroundImports):
    """`suspend()` is called before the code of a module of torch runs, `resume()` after it."""

    def __init__(self, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        super().__init__()
        self._suspend, self._resume = suspend, resume
        self._lock = threading.RLock()
        self._depth = 0

    def start(self) -> None:
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        sys.meta_path.remove(self)

    def concerns(self, name: str) -> bool:
        return is_torchs(name)

    def execute(self, code: Action, module: ModuleType) -> None:
        self._enter()
        try:
            code(module)
        finally:
            self._leave()

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
