"""Modules of other libraries: one that stands in the place of torch's, and code that runs when one is imported.

The code runs right after the import, or at once if the module was imported before. A finder stands in sys.meta_path only while some code waits.
"""

import importlib.util
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OF_THE_IMPORT_SYSTEM = ("__file__", "__path__", "__spec__", "__loader__", "__package__", "__all__")


class Facade(ModuleType):
    """A module with the names of `ours` and all other names of `original`. The original does not change: its functions keep using its names.

    `keeps_torchs(name)`: whether the importing module of that name gets the original's names from here, as torch's functions that import when
    called must.
    """

    def __init__(
        self, original: ModuleType, ours: dict[str, Any], keeps_torchs: Callable[[str], bool] = lambda name: False
    ) -> None:
        super().__init__(original.__name__, original.__doc__)
        told = {name: vars(original)[name] for name in _OF_THE_IMPORT_SYSTEM if name in vars(original)}
        self.__dict__.update(told, original=original, ours=ours, keeps_torchs=keeps_torchs)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name in own["ours"] and not own["keeps_torchs"](sys._getframe(1).f_globals.get("__name__", "")):
            return own["ours"][name]
        return getattr(own["original"], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__["ours"], *dir(self.__dict__["original"])})


def torchs_own(name: str) -> ModuleType:
    """torch's module of this name, even if a facade stands in its place. Imports it if nobody has."""
    # The package first. A thread that imports the package holds its lock and asks for the module's; one that imports the module does the opposite.
    import_module(name.rpartition(".")[0])
    module = import_module(name)
    return module.original if isinstance(module, Facade) else module


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
