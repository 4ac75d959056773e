"""Shardwise's names in the place of torch.distributed.tensor's."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, Literal

import torch
import torch.distributed as dist

from shardwise import _C
from shardwise.interop.when_imported import Action, AroundImports, Facade, torchs_own

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


# Each of our modules, and the modules of torch.distributed that define or re-export its names.
_STANDS_FOR = {
    "shardwise": ("tensor", "tensor._api", "_tensor", "_tensor.api"),
    "shardwise._dtensor_spec": ("tensor._dtensor_spec", "_tensor.placement_types"),
    "shardwise._utils": ("tensor._utils", "tensor._redistribute", "tensor._api"),
    "shardwise.debug": ("tensor.debug", "tensor.debug._comm_mode", "tensor.debug._visualize_sharding"),
    "shardwise.device_mesh": ("device_mesh", "tensor.device_mesh"),
    "shardwise.experimental": (
        "tensor.experimental", "tensor.experimental._func_map", "tensor.experimental._register_sharding",
    ),
    "shardwise.experimental._attention": (
        "tensor.experimental._attention", "tensor.experimental._context_parallel",
        "tensor.experimental._context_parallel._attention",
    ),
    "shardwise.fsdp": (
        "fsdp", "fsdp._fully_shard", "fsdp._fully_shard._fully_shard", "fsdp._fully_shard._fsdp_api",
        "_composable.fsdp", "_composable.fsdp.fully_shard",
    ),
    "shardwise.parallel": ("tensor.parallel", "tensor.parallel.api", "tensor.parallel.loss", "tensor.parallel.style"),
    "shardwise.parallel.input_reshard": ("tensor.parallel.input_reshard",),
    "shardwise.placement_types": ("tensor.placement_types", "_tensor.placement_types"),
}  # fmt: skip


def counterparts() -> Iterator[tuple[ModuleType, dict[str, Any]]]:
    """Each of torch's modules, imported, with our objects for the names that torch.distributed defined and our module has."""
    for ours, theirs in _STANDS_FOR.items():
        for name in theirs:
            module = torchs_own(f"torch.distributed.{name}")
            yield module, _names_of_ours(import_module(ours), module)


def _names_of_ours(ours: ModuleType, theirs: ModuleType) -> dict[str, Any]:
    """The attributes of `ours` for names in `theirs` that torch.distributed or torch's C++ defines. Submodules are left out: they have facades."""
    return {
        name: getattr(ours, name)
        for name, value in vars(theirs).items()
        if getattr(ours, name, value) is not value
        and str(getattr(value, "__module__", "")).startswith(("torch.distributed", "torch._C"))
    }


class TorchsImports(AroundImports):
    """`put("theirs")` is called before the code of a module of torch runs, `put("ours")` after it."""

    def __init__(self, put: Callable[[Literal["ours", "theirs"]], None]) -> None:
        super().__init__()
        self._put = put
        self._lock = threading.RLock()
        self._depth = 0

    def concerns(self, name: str) -> bool:
        return is_torchs(name)

    def execute(self, code: Action, module: ModuleType) -> None:
        self._count(1, "theirs")
        try:
            code(module)
        finally:
            self._count(-1, "ours")

    def _count(self, change: int, kind: Literal["ours", "theirs"]) -> None:
        """Counts the modules that are being imported, and puts the names there when the first begins or the last ends."""
        with self._lock:
            self._depth += change
            if self._depth == (1 if change > 0 else 0):
                self._put(kind)


_lock = threading.Lock()
_installed: list[Installation] = []


def install() -> None:
    """After this call, `import torch.distributed.tensor`, and the other modules that docs/coming_from_torch.md lists, give Shardwise's names in
    any module that is not torch's own.

    Names that other modules imported earlier are replaced, too: their globals, class attributes and default arguments. A warning names what
    cannot be replaced: subclasses of torch's classes, and collections that hold them. Tensors that torch made before stay torch's;
    from_torch converts them. torch's own modules keep torch's names, also if they are imported later.

    As in torch, plain tensors of one element next to DTensors count as replicas: the ranks compare their values each time, and raise an error
    if they differ. On a rank outside a tensor's mesh, torch.equal returns the answer of the mesh's ranks, so all ranks of the world must
    call it.

    A second call replaces what was imported since the first. uninstall() undoes everything.

    >>> import shardwise.compat
    >>> shardwise.compat.install()
    >>> from torch.distributed.tensor import DTensor
    >>> DTensor is sw.DTensor
    True
    >>> shardwise.compat.uninstall()
    """
    with _lock:
        if not _installed:
            _installed.append(Installation())
        _installed[0].exchange_bindings()


def uninstall() -> None:
    """Undoes install(). Without an install() it does nothing. Names that modules imported in between stay Shardwise's.

    >>> import shardwise.compat
    >>> shardwise.compat.install()
    >>> shardwise.compat.uninstall()
    >>> from torch.distributed.tensor import DTensor
    >>> DTensor is sw.DTensor
    False
    """
    with _lock:
        if _installed:
            _installed.pop().take_back()


class _Probe(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return args[0]


def _show_torch_its_own() -> None:
    """Makes torch's C++ look up its DTensor class by name now. It does so once, at the first operator of a tensor subclass. If that came later, it
    would find our class, and run our traced operators as its own."""
    probe = torch.Tensor._make_wrapper_subclass(_Probe, (1,))
    torch.ops.aten.zero_.default(probe)


class Installation:
    def __init__(self) -> None:
        by_module: dict[int, tuple[ModuleType, dict[str, Any]]] = {}
        for module, names in counterparts():
            by_module.setdefault(id(module), (module, {}))[1].update(names)
        self._facades = {key: Facade(module, names, is_torchs) for key, (module, names) in by_module.items()}
        self._ours: dict[int, Any] = dict(self._facades)
        for module, names in by_module.values():
            self._ours.update({id(vars(module)[name]): ours for name, ours in names.items()})
        self._modules = self._places_of_modules()
        _show_torch_its_own()
        self._bindings: list[Place] = []
        put(self._modules, "ours")
        self._imports = TorchsImports(partial(put, self._modules))
        sys.meta_path.insert(0, self._imports)
        _C.set_one_element_replicas(True)
        _C.set_answers_outside(True)

    def exchange_bindings(self) -> None:
        """Exchanges the names in modules that have bound torch's by now."""
        found = list(earlier_bindings(self._ours))
        warn_of_the_rest(self._ours)
        put(found, "ours")
        self._bindings += found

    def take_back(self) -> None:
        _C.set_answers_outside(False)
        _C.set_one_element_replicas(False)
        sys.meta_path.remove(self._imports)
        put(reversed(self._bindings), "theirs")
        put(self._modules, "theirs")

    def _places_of_modules(self) -> list[Place]:
        """The places where an import finds torch's modules, and the mesh names of torch.distributed."""
        places = []
        for name, module in list(sys.modules.items()):
            if id(module) not in self._facades:
                continue
            facade = self._facades[id(module)]
            places.append(Place(partial(sys.modules.__setitem__, name), module, facade))
            parent, _, child = name.rpartition(".")
            holder = self._facades.get(id(sys.modules[parent]), sys.modules[parent])
            if getattr(holder, child, None) is module:
                places.append(Place(partial(setattr, holder, child), module, facade))
        for name in ("DeviceMesh", "init_device_mesh"):
            theirs = getattr(dist, name)
            places.append(Place(partial(setattr, dist, name), theirs, self._ours[id(theirs)]))
        return places
