"""distribute_module: makes the parameters of a module DTensors."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from shardwise._C import distribute_tensors
from shardwise.device_mesh import DeviceMesh, mesh_or_current
from shardwise.dtensor import DTensor
from shardwise.forward_scope import open_around_forward
from shardwise.interop import from_torch
from shardwise.interop.state_dicts import take_plain_values
from shardwise.module_tensors import groups_where, is_read_by_its_class, places_of, put, tie_again
from shardwise.placement_types import Replicate

PartitionFn = Callable[[str, nn.Module, DeviceMesh], None]
HookFn = Callable[[nn.Module, Any, DeviceMesh], Any]


def distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: PartitionFn | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Makes DTensors of all parameters and buffers of `module`, in place, and returns it.

    `partition_fn(name, submodule, mesh)` is called on every submodule and replaces parameters by DTensors; all others are replicated.
    A tensor that several submodules share stays shared: if `partition_fn` replaces it in one of them, the others get the replacement. If it
    makes several replacements of one tensor, a warning names them. DTensors of torch.distributed.tensor are first converted. A frozen
    parameter of a class that only its library reads, such as bitsandbytes' Params4bit, stays plain, and counts as replicated.

    Within a forward of the module, or of one of its submodules called alone, plain tensors next to DTensors count as replicas: the model
    may make masks, positions and constants, and be given plain ids. The ranks compare the plain arguments of that call: tensors and
    numbers, also in tuples, lists, dicts and dataclasses. They compare at the first call of each signature, and with SHARDWISE_CHECK=1 at
    every call: each rank sends two numbers for all arguments. If they differ, all ranks raise a ValueError or TypeError that names the
    argument where a plain tensor meets a DTensor. Arguments that `input_fn` or a ParallelStyle of the called module wraps are not compared.
    Under implicit_replication() nothing is compared: the caller is responsible.

    The module's load_state_dict() also takes plain values that are equal on all ranks: each rank takes its part.

    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` become hooks around forward. They may leave out the first
    argument. Collective over the mesh. Raises RuntimeError for a module that has been distributed before, and ValueError for functions with
    other numbers of arguments.

    >>> def shard(name, module, mesh):
    ...     if isinstance(module, torch.nn.Linear):
    ...         weight = sw.distribute_tensor(module.weight.detach(), mesh, [sw.Shard(0)])
    ...         module.weight = torch.nn.Parameter(weight)
    >>> model = sw.distribute_module(torch.nn.Sequential(torch.nn.Linear(4, 10)), mesh, shard)
    >>> model[0].weight.placements, model[0].bias.placements
    ((Shard(0),), (Replicate(),))
    >>> model(torch.ones(2, 4)).shape  # plain, and the same on all ranks
    torch.Size([2, 10])
    """
    if getattr(module, "_is_distributed", False):
        raise RuntimeError(
            f"[distribute_module] this {type(module).__name__} has been distributed before: distribute_module should only be "
            "called once on a module. Call it on the outermost one."
        )
    mesh = mesh_or_current(device_mesh)
    from_torch(module)
    if partition_fn is not None:
        places = list(places_of(module))
        for name, submodule in list(module.named_modules()):
            partition_fn(name, submodule, mesh)
        tie_again("distribute_module", places)
    _replicate_rest(module, mesh)
    take_plain_values(module)
    if input_fn is not None:
        before = _of_three("input_fn", input_fn)
        module.register_forward_pre_hook(lambda hooked, inputs: before(hooked, inputs, mesh))
    if output_fn is not None:
        after = _of_three("output_fn", output_fn)
        module.register_forward_hook(lambda hooked, inputs, outputs: after(hooked, outputs, mesh))
    open_around_forward(module)
    module._is_distributed = True  # type: ignore[assignment]
    return module


def _of_three(name: str, fn: Callable[..., Any]) -> HookFn:
    """`fn` as a function of three arguments: the module, its inputs or outputs, and the mesh. Raises ValueError for other functions."""
    n_arguments = len(inspect.signature(fn).parameters)
    if n_arguments == 3:
        return fn
    if n_arguments != 2:
        raise ValueError(
            f"[distribute_module] {name} should take in 3 arguments (module, values, mesh), got {n_arguments} arguments!"
        )
    warnings.warn(
        f"[distribute_module] Deprecating {name} of two arguments (values, mesh): take the module first.",
        FutureWarning,
        stacklevel=3,
    )
    return lambda module, values, mesh: fn(values, mesh)


def _replicate_rest(module: nn.Module, mesh: DeviceMesh) -> None:
    groups = groups_where(module, lambda tensor: not isinstance(tensor, DTensor) and not is_read_by_its_class(tensor))
    replicated = [[Replicate()] * mesh.ndim] * len(groups)
    replicas = distribute_tensors([group[0].original.detach() for group in groups], mesh, replicated)
    for group, replica in zip(groups, replicas, strict=True):
        put(replica, group)
