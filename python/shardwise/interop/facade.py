"""A module that stands where one of torch's stood."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["Facade", "torchs_own"]

_OF_THE_IMPORT_SYSTEM = ("__file__", "__path__", "__spec__", "__loader__", "__package__", "__all__")


class Facade(ModuleType):
    """Has `ours`, and every other name of `original`, which stays as it is: its own functions go on using its own names."""

    def __init__(self, original: ModuleType, ours: dict[str, Any]) -> None:
        super().__init__(original.__name__, original.__doc__)
        told = {name: vars(original)[name] for name in _OF_THE_IMPORT_SYSTEM if name in vars(original)}
        self.__dict__.update(told | ours, original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.__dict__["original"])})


def torchs_own(name: str) -> ModuleType:
    """torch's module of this name, whatever stands in its place now. Imports it where nobody did."""
    module = sys.modules.get(name) or import_module(name)
    return module.original if isinstance(module, Facade) else module
