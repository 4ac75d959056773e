"""How functions and methods of another library are exchanged for what knows our tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Function = Callable[..., Any]


def replace_functions(module: ModuleType, replacements: Mapping[str, Function]) -> None:
    """Exchanges the functions that `module` defines or has imported by these names: the replacement is called with the original and the
    call's arguments. Once for each function, whatever modules it is in."""
    for name, replacement in replacements.items():
        original = getattr(module, name, None)
        if original is not None and not hasattr(original, "_teaches_shardwise"):
            taught = functools.wraps(original)(functools.partial(replacement, original))
            taught._teaches_shardwise = True  # type: ignore[attr-defined]
            setattr(module, name, taught)


def replace_methods(module: ModuleType, replacements: Mapping[str, Callable[[Any], Any]]) -> None:
    """Exchanges the methods of the module's own classes that have one of these names for what the replacement makes of them."""
    for owner in list(vars(module).values()):
        if not isinstance(owner, type) or owner.__module__ != module.__name__:
            continue
        for method, replacement in replacements.items():
            if method in vars(owner):
                setattr(owner, method, replacement(vars(owner)[method]))
