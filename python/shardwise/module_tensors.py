"""The parameters and buffers of a module by the places where its submodules keep them. Several places may keep one tensor."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from shardwise import _C


class Place:
    """A place where `module` keeps a tensor under `name`, and the tensor that was there when this object was made."""

    def __init__(self, path: str, module: nn.Module, tensors: dict[str, Any], name: str) -> None:
        self.path = f"{path}.{name}" if path else name
        self.module, self.name = module, name
        self._tensors = tensors
        self.original: torch.Tensor = tensors[name]

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor that is there now; None if it was taken away."""
        return self._tensors.get(self.name)

    @tensor.setter
    def tensor(self, value: torch.Tensor | None) -> None:
        self._tensors[self.name] = value


def places_of(module: nn.Module) -> Iterator[Place]:
    """The places of all parameters and buffers. A shared tensor has one per submodule and name."""
    return _places(module.named_modules(), lambda tensor: True)


def _places(modules: Iterable[tuple[str, nn.Module]], chosen: Callable[[torch.Tensor], bool]) -> Iterator[Place]:
    """The places of the chosen tensors that the modules have themselves. Each module comes with its path."""
    for path, module in modules:
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and chosen(tensor):
                    yield Place(path, module, tensors, name)


def submodules_of(module: nn.Module) -> list[nn.Module]:
    """The modules of module.modules(), without the time that the names take."""
    found: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            if each._modules:
                waiting += [child for child in reversed(each._modules.values()) if child is not None]
    return list(found.values())


def groups_where(module: nn.Module, chosen: Callable[[torch.Tensor], bool]) -> list[list[Place]]:
    """by_tensor() of the places of the chosen tensors. The paths of the places lack the submodules."""
    return by_tensor(list(_places((("", submodule) for submodule in submodules_of(module)), chosen)))


def is_read_by_its_class(tensor: torch.Tensor) -> bool:
    """True for a frozen parameter of a class of its own that only functions of its library read, such as the packed weights of bitsandbytes
    (Params4bit): a DTensor would be without the class, its attributes and its true shape."""
    has_own_class = isinstance(tensor, nn.Parameter) and type(tensor) is not nn.Parameter
    return has_own_class and _C.subclass_in(tensor) is None and not tensor.requires_grad


def run_within(module: nn.Module, scope: Callable[[], AbstractContextManager[Any]]) -> None:
    """Makes each forward of `module` run in a `with` block of its own, which scope() gives."""
    entered: list[AbstractContextManager[Any]] = []  # inner ones last

    def enter(*_: Any) -> None:
        entered.append(scope())
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


def by_tensor(places: list[Place]) -> list[list[Place]]:
    """The places in groups: those of a group kept the same tensor."""
    groups: dict[int, list[Place]] = {}
    for place in places:
        groups.setdefault(id(place.original), []).append(place)
    return list(groups.values())


def put(value: torch.Tensor, places: list[Place]) -> torch.Tensor:
    """Puts `value` into the places of one tensor, as a parameter if that was one, and returns what is there now."""
    original = places[0].original
    if isinstance(original, nn.Parameter):
        value = nn.Parameter(value, requires_grad=original.requires_grad)
    for place in places:
        place.tensor = value
    return value


def tie_again(op: str, places: list[Place]) -> None:
    """If some of the places of one tensor have a replacement, the others get it, too. Warns if there are several replacements."""
    for group in by_tensor(places):
        replaced = [place for place in group if place.tensor is not None and place.tensor is not place.original]
        n_replacements = len({id(place.tensor) for place in replaced})
        if n_replacements > 1:
            warnings.warn(
                f"[{op}] {', '.join(place.path for place in replaced)} shared one tensor, and partition_fn gave them "
                f"{n_replacements}: they are trained apart from now on. Have partition_fn replace the tensor in one of them "
                "only; the others then get the replacement.",
                stacklevel=3,
            )
        for place in group if replaced else ():
            if place.tensor is place.original:
                place.tensor = replaced[0].tensor
