"""Turning the parameters of a module into DTensors."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from shardwise.device_mesh import DeviceMesh, mesh_or_current
from shardwise.dtensor import DTensor, distribute_tensor
from shardwise.interop import from_torch
from shardwise.interop.state_dicts import placed_as

__all__ = ["distribute_module"]

PartitionFn = Callable[[str, nn.Module, DeviceMesh], None]
InputFn = Callable[[nn.Module, Any, DeviceMesh], Any]


def distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: PartitionFn | None = None,
    input_fn: InputFn | None = None,
    output_fn: InputFn | None = None,
) -> nn.Module:
    """Makes DTensors of all parameters and buffers of `module`, in place, and returns it.

    `partition_fn(name, submodule, mesh)` is called on every submodule and shards what it likes; the rest is replicated.
    A tensor that several submodules share stays shared: where `partition_fn` replaces it in one of them, the others get the
    replacement; where it makes several of it, a warning names them. DTensors of torch.distributed.tensor become ours first.

    The module's load_state_dict() takes plain values, too, alike on all ranks: each takes its part.

    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` become hooks around forward. Collective over the
    mesh. Raises ValueError for a module that has been distributed before.
    """
    if getattr(module, "_is_distributed", False):
        raise ValueError(
            f"[distribute_module] this {type(module).__name__} has been distributed before. Call it once, on the outermost module."
        )
    mesh = mesh_or_current(device_mesh)
    from_torch(module)
    places = list(_places_of(module))
    for name, submodule in list(module.named_modules()):
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
    _tie_again(places)
    _replicate_rest(module, mesh)
    for submodule in module.modules():
        submodule.register_load_state_dict_pre_hook(_place_loaded_values)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda hooked, inputs: input_fn(hooked, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda hooked, inputs, outputs: output_fn(hooked, outputs, mesh))
    module._is_distributed = True  # type: ignore[assignment]
    return module


class _Place:
    """Where a module keeps a tensor, and which one it kept at first."""

    def __init__(self, path: str, tensors: dict[str, Any], name: str) -> None:
        self.path = f"{path}.{name}" if path else name
        self._tensors, self._name = tensors, name
        self.original: torch.Tensor = tensors[name]

    @property
    def tensor(self) -> torch.Tensor | None:
        return self._tensors.get(self._name)

    @tensor.setter
    def tensor(self, value: torch.Tensor) -> None:
        self._tensors[self._name] = value


def _places_of(module: nn.Module) -> Iterator[_Place]:
    """Every parameter and buffer, shared ones once per submodule and name."""
    for path, submodule in module.named_modules():
        for tensors in (submodule._parameters, submodule._buffers):
            yield from (_Place(path, tensors, name) for name, tensor in tensors.items() if tensor is not None)


def _by_original(places: list[_Place]) -> list[list[_Place]]:
    groups: dict[int, list[_Place]] = {}
    for place in places:
        groups.setdefault(id(place.original), []).append(place)
    return list(groups.values())


def _tie_again(places: list[_Place]) -> None:
    """Where some of the places of one tensor have a replacement, the others get it too. Warns where there are several."""
    for group in _by_original(places):
        replaced = [place for place in group if place.tensor is not None and place.tensor is not place.original]
        if not replaced:
            continue
        replacements = {id(place.tensor) for place in replaced}
        if len(replacements) > 1:
            warnings.warn(
                f"[distribute_module] {', '.join(place.path for place in replaced)} shared one tensor, and partition_fn gave them "
                f"{len(replacements)}: they are trained apart from now on. Have partition_fn replace the tensor in one of "
                "them only; the others then get the replacement.",
                stacklevel=3,
            )
        for place in group:
            if place.tensor is place.original:
                place.tensor = replaced[0].tensor  # type: ignore[assignment]


def _replicate_rest(module: nn.Module, mesh: DeviceMesh) -> None:
    for group in _by_original(list(_places_of(module))):
        tensor = group[0].original
        if isinstance(tensor, DTensor):
            continue
        replica: torch.Tensor = distribute_tensor(tensor.detach(), mesh)
        if isinstance(tensor, nn.Parameter):
            replica = nn.Parameter(replica, requires_grad=tensor.requires_grad)
        for place in group:
            place.tensor = replica


def _place_loaded_values(module: nn.Module, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
    """Lays out plain values, and torch's DTensors, as the parameters and buffers that load_state_dict() copies them to."""
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        values = state_dict.get(prefix + name)
        if isinstance(tensor, DTensor) and isinstance(values, torch.Tensor):
            state_dict[prefix + name] = placed_as(values, tensor)
