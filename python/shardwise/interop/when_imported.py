"""Code that runs once a module of another library is there: right after its import, or at once where it was imported before.

A finder stands in sys.meta_path while something waits, and only then.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]
_waiting: dict[str, list[Action]] = {}
_searches: set[tuple[int, str]] = set()  # of a thread for a module, among the other finders


def when_imported(name: str, action: Action) -> None:
    """Calls `action(module)` once, as soon as the module called `name` has been executed. Imports nothing itself."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    _waiting.setdefault(name, []).append(action)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


class _Watcher(MetaPathFinder):
    """Finds what the other finders find, and has the actions called after the module's own code."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        search = (threading.get_ident(), fullname)
        if fullname not in _waiting or search in _searches:
            return None
        _searches.add(search)
        try:
            spec = importlib.util.find_spec(fullname)  # comes back here, and goes on with the other finders
        finally:
            _searches.remove(search)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            for action in _waiting.pop(fullname, []):  # not before: who looks for a module need not import it
                action(module)
            if not _waiting and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = execute_and_act
        return spec


_watcher = _Watcher()
