"""A module that stands where one of torch's stood."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_OF_THE_IMPORT_SYSTEM = ("__file__", "__path__", "__spec__", "__loader__", "__package__", "__all__")


class Facade(ModuleType):
    """Has `ours`, and every other name of `original`, which stays as it is: its own functions go on using its own names.

    `keeps_torchs(name)`: whether the module called so gets the original's names here, too, as functions do that import when called.
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
    """torch's module of this name, whatever stands in its place now. Imports it where nobody did."""
    module = sys.modules.get(name) or import_module(name)
    return module.original if isinstance(module, Facade) else module
