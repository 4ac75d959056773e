"""Runs code when a module of another library is imported: right after its import, or at once if it was imported before.

A finder stands in sys.meta_path only while some code waits.
"""

import importlib.util
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]
_waiting: dict[str, list[Action]] = {}


def when_imported(name: str, action: Action) -> None:
    """Calls `action(module)` once, as soon as the module called `name` has been executed. Imports nothing itself."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    _waiting.setdefault(name, []).append(action)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


class AroundImports(MetaPathFinder):
    """Finds modules by the other finders, and makes `execute` run the code of the modules for which `concerns` is true."""

    def __init__(self) -> None:
        self._searches: set[tuple[int, str]] = set()  # (thread, module) of running searches among the other finders

    @abstractmethod
    def concerns(self, name: str) -> bool: ...

    @abstractmethod
    def execute(self, code: Action, module: ModuleType) -> None:
        """Calls code(module)."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        search = (threading.get_ident(), fullname)
        if not self.concerns(fullname) or search in self._searches:
            return None
        self._searches.add(search)
        try:
            spec = importlib.util.find_spec(fullname)  # calls this method again, which then leaves the search to others
        finally:
            self._searches.remove(search)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        code = loader.exec_module

        def execute(module: ModuleType) -> None:  # restored only here: a search for a spec need not import the module
            loader.exec_module = code
            self.execute(code, module)

        loader.exec_module = execute
        return spec


class _Watcher(AroundImports):
    """Calls the actions after the module's own code."""

    def concerns(self, name: str) -> bool:
        return name in _waiting

    def execute(self, code: Action, module: ModuleType) -> None:
        code(module)
        for action in _waiting.pop(module.__name__, []):
            action(module)
        if not _waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


_watcher = _Watcher()
