"""Names that programs bound to torch's objects before Shardwise's names were installed."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Literal

Ours = Mapping[int, Any]  # our object for an object of torch, by the id of the latter


@dataclass(frozen=True)
class Place:
    """A place where `bind` binds a name to `theirs` or `ours`."""

    bind: Callable[[Any], None]
    theirs: Any
    ours: Any


def put(places: Iterable[Place], kind: Literal["ours", "theirs"]) -> None:
    for place in places:
        place.bind(getattr(place, kind))


def is_torchs(name: str) -> bool:
    """Whether the module of this name is part of torch and keeps torch's own names. torch.testing gets ours."""
    return name == "torch" or (name.startswith("torch.") and not name.startswith("torch.testing"))


def earlier_bindings(ours: Ours) -> Iterator[Place]:
    """The globals of modules, attributes of their classes and default arguments of their functions that are torch's objects."""
    for module in _programs_modules():
        functions = _defined_in(module, FunctionType)
        for owner in (module, *_defined_in(module, type)):
            for name, value in list(vars(owner).items()):
                if id(value) in ours:
                    yield Place(partial(setattr, owner, name), value, ours[id(value)])
                if owner is not module:
                    functions.append(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
        for function in functions:
            if isinstance(function, FunctionType):
                yield from _in_defaults(function, ours)


def warn_of_the_rest(ours: Ours) -> None:
    """Warns of names that cannot be exchanged: subclasses of torch's classes, and collections that hold torch's objects."""
    found = []
    for module in _programs_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                bases = [base.__name__ for base in value.__mro__[1:] if id(base) in ours]
                if bases:
                    found.append(f"{module.__name__}.{name}, a subclass of torch's {bases[0]}")
            elif any(id(each) in ours for each in _held(value)):
                found.append(f"{module.__name__}.{name}, a {type(value).__name__} that holds them")
    if found:
        warnings.warn(
            "[compat] these were made with torch.distributed.tensor's classes and functions before install() and keep them: "
            f"{'; '.join(found)}. Call install() first, or start the program with python -m shardwise.compat.",
            stacklevel=3,
        )


def _held(value: Any) -> list[Any]:
    """The contents of a collection, read by the methods of the built-in class: a library's own kind of dict may load modules, and fail, when asked
    for its values."""
    if isinstance(value, dict):
        return [*dict.keys(value), *dict.values(value)]
    kinds: tuple[Any, ...] = (tuple, list, set, frozenset)
    return next(([*kind.__iter__(value)] for kind in kinds if isinstance(value, kind)), [])


def _programs_modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        is_ours = name == "shardwise" or name.startswith("shardwise.")
        if type(module) is ModuleType and not is_ours and not is_torchs(name):
            yield module


def _defined_in(module: ModuleType, kind: type) -> list[Any]:
    values = list(vars(module).values())
    return [value for value in values if isinstance(value, kind) and value.__module__ == module.__name__]


def _in_defaults(function: FunctionType, ours: Ours) -> Iterator[Place]:
    for kind in ("__defaults__", "__kwdefaults__"):
        given = getattr(function, kind)
        values = given.values() if isinstance(given, dict) else given or ()
        if not any(id(value) in ours for value in values):
            continue
        if isinstance(given, dict):
            changed: Any = {name: ours.get(id(value), value) for name, value in given.items()}
        else:
            changed = tuple(ours.get(id(value), value) for value in values)
        yield Place(partial(setattr, function, kind), given, changed)
