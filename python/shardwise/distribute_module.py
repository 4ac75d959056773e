"""Turning the parameters of a module into DTensors."""

from collections.abc import Callable
from typing import Any

from torch import nn

from shardwise.device_mesh import DeviceMesh, mesh_or_current
from shardwise.dtensor import DTensor, distribute_tensor

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
    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` become hooks around forward. Collective over the
    mesh. Raises ValueError for a module that has been distributed before.
    """
    if getattr(module, "_is_distributed", False):
        raise ValueError(
            f"[distribute_module] this {type(module).__name__} has been distributed before. Call it once, on the outermost module."
        )
    mesh = mesh_or_current(device_mesh)
    for name, submodule in list(module.named_modules()):
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
        _replicate_rest(submodule, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda hooked, inputs: input_fn(hooked, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda hooked, inputs, outputs: output_fn(hooked, outputs, mesh))
    module._is_distributed = True  # type: ignore[assignment]
    return module


def _replicate_rest(module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if not isinstance(parameter, DTensor):
            replica = distribute_tensor(parameter.detach(), mesh)
            module.register_parameter(name, nn.Parameter(replica, requires_grad=parameter.requires_grad))
    for name, buffer in module.named_buffers(recurse=False):
        if not isinstance(buffer, DTensor):
            module._buffers[name] = distribute_tensor(buffer, mesh)
