"""fully_shard: what it is given, checked, and the group of parameters that it makes."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn

from shardwise.device_mesh import DeviceMesh, mesh_or_world
from shardwise.dtensor import DTensor
from shardwise.fsdp.module import become_fsdp_module
from shardwise.fsdp.policies import MixedPrecisionPolicy, OffloadPolicy
from shardwise.fsdp.unit import Places, Unit, dealt_by, unit_of

__all__ = ["fully_shard"]

M = TypeVar("M", bound="nn.Module | list[nn.Module]")


def fully_shard(
    module: M,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
) -> M:
    """Shards the parameters of `module` in place over the ranks of `mesh` and returns it; it is an FSDPModule from now on.

    Each rank computes on its own part of the batch, as under DistributedDataParallel, with plain tensors. The parameters of `module` that
    no inner module's call took are one group: their parts are DTensors placed as [Shard(0)], of any sizes. They are gathered in one
    exchange before the forward, one group ahead of the computing; freed after it, and gathered again for the backward, where
    `reshard_after_forward` is True (None: for all but the outermost module). Their gradients are reduced in one exchange to the mean over
    the ranks, and are sharded as the parameters. So call it on inner modules first. A list of modules is one group.

    `mesh`: of one dim, or of two: parameters are replicated over the first and sharded over the second. Without one all ranks. As a slice,
    mesh["dp"], beside other dims on which parameters are DTensors already (parallelize_module on mesh["tp"]): those are sharded further, and
    stay DTensors on these during the forward. `ignored_params` stay as they are, and their gradients, too: those of a
    DistributedEmbedding, say. Parameters that modules share stay one where all these modules are in one call.

    Sends nothing: each rank takes its part of its own parameters, which must be equal on all ranks. A forward and a backward are collective
    over the mesh. Per rank and step they receive what it lacks of the parameters, twice (once without resharding), and n-1 times its part
    in gradients: for n even parts 3 (n-1)/n of the whole.

    Raises ValueError, alike on all ranks and before anything is sharded, for a module that is fully sharded already or has no
    parameters left, an inner module after the outer one, parameters that other groups share, and meshes of more dims or without a common root
    with a parameter's; TypeError and NotImplementedError for arguments of other types.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    >>> first = sw.fsdp.fully_shard(model[0], mesh=mesh)
    >>> model = sw.fsdp.fully_shard(model, mesh=mesh)
    >>> model(torch.ones(2, 8)).sum().backward()  # this rank's part of the batch
    >>> model[0].weight.placements, model[0].weight.to_local().shape, model[0].weight.grad.placements
    ((Shard(0),), torch.Size([2, 8]), (Shard(0),))
    """
    modules = _modules(module)
    _check_policies(reshard_after_forward, mp_policy, offload_policy)
    mesh = mesh_or_world(mesh)
    for each in modules:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)) and type(each).forward is nn.Module.forward:
            raise ValueError(
                f"[fully_shard] {type(each).__name__} has no forward, before which its parameters could be gathered. Call fully_shard on "
                "the modules in it."
            )
        if unit_of(each) is not None:
            raise ValueError(
                f"[fully_shard] {type(each).__name__} is fully sharded already. Call fully_shard once per module."
            )
    found = _parameters(modules, ignored_params or set())
    inner = list(_inner_units(modules))
    if not found and not inner:
        raise ValueError(
            f"[fully_shard] {type(modules[0]).__name__} has no parameters to shard, or all of them are in ignored_params. Leave the call "
            "out."
        )
    unit = Unit(
        modules, [name for name, _ in found], [places for _, places in found], mesh, mp_policy or MixedPrecisionPolicy(),
        reshard_after_forward,
    )  # fmt: skip
    for contained in inner:
        unit.contain(contained)
    for each in modules:
        become_fsdp_module(each)
    return module


def _modules(module: object) -> list[nn.Module]:
    modules: list[Any] = list(module) if isinstance(module, (list, tuple)) else [module]
    for each in modules:
        if not isinstance(each, nn.Module):
            raise TypeError(
                f"[fully_shard] {type(each).__name__} is no nn.Module. Give a module, or a list of modules."
            )
    if not modules:
        raise ValueError("[fully_shard] the list has no modules. Give at least one.")
    return modules


def _check_policies(reshards: object, mp_policy: object, offload_policy: object) -> None:
    if reshards is not None and not isinstance(reshards, bool):
        raise NotImplementedError(
            f"[fully_shard] reshard_after_forward={reshards!r}: parameters are not resharded to a smaller mesh. Give True, which saves "
            "memory, or False, which saves messages."
        )
    names = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
    if mp_policy is not None and not all(hasattr(mp_policy, name) for name in names):
        raise TypeError(f"[fully_shard] mp_policy is of type {type(mp_policy).__name__}. Give a MixedPrecisionPolicy.")
    known = ("NoneType", "OffloadPolicy", "CPUOffloadPolicy")  # torch's, too
    if not isinstance(offload_policy, OffloadPolicy) and type(offload_policy).__name__ not in known:
        raise TypeError(
            f"[fully_shard] offload_policy is of type {type(offload_policy).__name__}. Give an OffloadPolicy."
        )


def _inner_units(modules: Sequence[nn.Module]) -> Iterator[Unit]:
    seen: set[int] = set()
    for module in chain.from_iterable(each.modules() for each in modules):
        unit = unit_of(module)
        if unit is not None and id(unit) not in seen:
            seen.add(id(unit))
            yield unit


def _parameters(modules: list[nn.Module], ignored: set[nn.Parameter]) -> list[tuple[str, Places]]:
    """The parameters that the call takes, each with all its places in the modules."""
    taken = {id(parameter) for unit in _inner_units(modules) for parameter in (*unit.sharded, *unit.leaves)}
    left_out = {id(parameter) for parameter in ignored}
    found: dict[int, tuple[str, Places]] = {}
    for module in modules:
        for submodule in module.modules():
            if getattr(submodule, "reduces_gradients", False):  # and shards its parameters: DistributedEmbedding
                left_out.update(id(parameter) for parameter in submodule.parameters())
    for module in modules:
        for path, submodule in module.named_modules():
            for name, parameter in submodule._parameters.items():
                if parameter is None or id(parameter) in left_out or id(parameter) in taken:
                    continue
                full_name = f"{path}.{name}" if path else name
                _check_free(full_name, parameter)
                found.setdefault(id(parameter), (full_name, []))[1].append((submodule, name))
    return list(found.values())


def _check_free(name: str, parameter: torch.Tensor) -> None:
    """Nobody else has it in a group."""
    owner = dealt_by(parameter)
    if owner is None:
        return
    if isinstance(parameter, DTensor):
        raise ValueError(
            f"[fully_shard] {name} is in the group of {owner}, the module around it, already. Call fully_shard on inner modules first, "
            "and on the outer one last."
        )
    raise ValueError(
        f"[fully_shard] {name} is shared with {owner}, which was fully sharded alone. Call it on all modules that share it: "
        "fully_shard([a, b])."
    )
