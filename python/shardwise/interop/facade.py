"""Facade: a module that stands in the place of one of torch's."""

import sys
from collections.abc import Callable
from importlib import import_module
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
