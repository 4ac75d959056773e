"""fully_shard: checks its arguments and makes a group of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh, mesh_or_world
from shardwise.fsdp.extensions import has_extensions
from shardwise.fsdp.module import become_fsdp_module
from shardwise.fsdp.policies import MixedPrecisionPolicy, OffloadPolicy
from shardwise.fsdp.unit import Places, Unit, refuse_calls_outside, unit_of, units_of
from shardwise.placement_types import Placement, Shard

M = TypeVar("M", bound="nn.Module | list[nn.Module]")


def fully_shard(
    module: M,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
) -> M:
    """Shards the parameters of `module` in place over the ranks of `mesh` and returns it; it is an FSDPModule from now on.

    Each rank computes on its own part of the batch, with plain tensors, as under DistributedDataParallel. The parameters of `module` that
    no inner call of fully_shard took form one group, so call it on inner modules first. A list of modules forms one group. The parts of
    parameters are DTensors with the placements [Shard(0)], of any sizes. One exchange gathers the group before its forward, while the group
    before it still computes. The gathered parameters are freed after the forward, and gathered again for the backward. One exchange reduces
    the gradients to the mean over the ranks; gradients are sharded like the parameters.

    `reshard_after_forward`: True frees the gathered parameters after the forward, False keeps them until the backward, and None is True for
    all but the outermost module. A number that divides the number of ranks: each rank keeps one n-th of the gathered parameters after the
    forward, and gathers for the backward among n consecutive ranks, for example those of one machine. The DTensors in the module stay sharded
    over all ranks. 1 is the same as False, and the number of ranks is the same as True.
    `shard_placement_fn`: returns the Shard of a parameter, of any dim or of given sizes, or None for Shard(0); for Shard(1) if the
    parameter is divided into given sizes along dim 0 already. It must return the same on all ranks.

    `mesh`: of one dim, or of two: then parameters are replicated over the first and sharded over the second. Default: all ranks. If parameters
    are DTensors on another dim already (parallelize_module on mesh["tp"]), give a slice, mesh["dp"]: they are sharded further, and are
    DTensors on mesh["tp"] during the forward. `ignored_params` and their gradients do not change; nor do the parameters of a
    DistributedEmbedding, which need not be named. A parameter that several modules share stays one if all these modules are in one call.
    A parameter of a tensor subclass, or whose local tensor is of one, is gathered as its fsdp_pre_all_gather and fsdp_post_all_gather say,
    with torch's arguments; docs/local_classes.md has an example.

    Sends nothing: each rank takes its part of its own parameters, which must be equal on all ranks. A forward and a backward are collective
    over the mesh: all ranks must call the same modules, but may use different parameters of a module. Cost per rank and step: it receives the
    parameters that it lacks, twice (once without resharding), and n-1 times the size of its part in gradients, with one byte per parameter.
    For n even parts that is 3 (n-1)/n of the size of the parameters.

    A module without parameters becomes an FSDPModule that gathers nothing. fully_shard.state(module) is an object that stands for the group of
    a module, the same for all modules of one call, or None if the module is not fully sharded.

    Raises on all ranks before anything is sharded: AssertionError for a module that is fully sharded already; ValueError for an inner module
    after the outer one, parameters that other groups share, a mesh of more than two dims, one without a common root with a parameter's mesh,
    a `reshard_after_forward` that is no bool or divisor of the number of ranks, and a result of `shard_placement_fn` that is no placement;
    IndexError for a Shard of a dim that a parameter does not have; TypeError for other arguments of other types, and for a parameter of a
    class without these two methods.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    >>> first = sw.fsdp.fully_shard(model[0], mesh=mesh)
    >>> model = sw.fsdp.fully_shard(model, mesh=mesh)
    >>> model(torch.ones(2, 8)).sum().backward()  # this rank's part of the batch
    >>> model[0].weight.placements, model[0].weight.to_local().shape, model[0].weight.grad.placements
    ((Shard(0),), torch.Size([2, 8]), (Shard(0),))
    """
    modules = _modules(module)
    _check_policies(mp_policy, offload_policy)
    mesh = mesh_or_world(mesh)
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, int):
        raise ValueError(
            f"[fully_shard] reshard_after_forward is of type {type(reshard_after_forward).__name__}. Give True, which saves memory, "
            "False, which saves messages, or a number of ranks."
        )
    settings = _C.GroupSchedule()
    settings.set_reshard_after_forward(reshard_after_forward, mesh)
    for each in modules:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)) and type(each).forward is nn.Module.forward:
            raise ValueError(
                f"[fully_shard] {type(each).__name__} has no forward, before which its parameters could be gathered. Call fully_shard on "
                "the modules in it."
            )
        if unit_of(each) is not None:
            raise AssertionError(  # as torch's
                f"[fully_shard] {type(each).__name__} is fully sharded already. Call fully_shard once per module."
            )
    found = _parameters(modules, ignored_params or set())
    along = [_along(name, places, mesh, shard_placement_fn) for name, places in found]
    inner = units_of(chain.from_iterable(each.modules() for each in modules))
    Unit(modules, found, along, mesh, mp_policy or MixedPrecisionPolicy(), settings)
    for contained in inner:
        settings.schedule.take(contained.settings.schedule)
    for each, owner in _used_outside(modules, inner):
        refuse_calls_outside(each, owner)
    for each in modules:
        become_fsdp_module(each)
    return module


fully_shard.state = unit_of  # type: ignore[attr-defined]


def _modules(module: object) -> list[nn.Module]:
    modules: list[Any] = list(module) if isinstance(module, (list, tuple)) else [module]
    for each in modules:
        if not isinstance(each, nn.Module):
            raise TypeError(
                f"[fully_shard] {type(each).__name__} is no nn.Module. Give a module, or a list of modules."
            )
    if not modules:
        raise ValueError("[fully_shard] the list has no modules. Give at least one.")
    return list(dict.fromkeys(modules))


def _along(name: str, places: Places, mesh: Any, shard_placement_fn: Callable[[Any], Any] | None) -> Placement:
    (module, key), *_ = places
    parameter: Any = module._parameters[key]
    placement = None if shard_placement_fn is None else shard_placement_fn(parameter)
    if placement is not None and not hasattr(placement, "is_shard"):  # our placements and torch's have it
        raise ValueError(
            f"[fully_shard] shard_placement_fn returned {type(placement).__name__} for {name}. Return Shard(dim), or None for Shard(0); for "
            "another mesh call fully_shard on the module that has the parameter."
        )
    return _C.default_split(parameter, mesh) if placement is None else placement


def _check_policies(mp_policy: object, offload_policy: object) -> None:
    names = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
    if mp_policy is not None and not all(hasattr(mp_policy, name) for name in names):
        raise TypeError(f"[fully_shard] mp_policy is of type {type(mp_policy).__name__}. Give a MixedPrecisionPolicy.")
    known = ("NoneType", "OffloadPolicy", "CPUOffloadPolicy")  # torch's classes have these names, too
    if not isinstance(offload_policy, OffloadPolicy) and type(offload_policy).__name__ not in known:
        raise TypeError(
            f"[fully_shard] offload_policy is of type {type(offload_policy).__name__}. Give an OffloadPolicy."
        )


def _used_outside(modules: list[nn.Module], units: list[Unit]) -> Iterator[tuple[nn.Module, Unit]]:
    """Modules that have parameters of a unit but are not within the unit's modules, each with that unit."""
    owners = {id(parameter): unit for unit in units for parameter in unit.sharded}
    seen: set[tuple[nn.Module, frozenset[Unit]]] = set()

    def visit(module: nn.Module, around: frozenset[Unit]) -> Iterator[tuple[nn.Module, Unit]]:
        unit = unit_of(module)
        if unit is not None:
            around |= {unit}
        if (module, around) in seen:
            return
        seen.add((module, around))
        for parameter in module._parameters.values():
            owner = owners.get(id(parameter))
            if owner is not None and owner not in around:
                yield module, owner
                break
        for child in module.children():
            yield from visit(child, around)

    for module in modules:
        yield from visit(module, frozenset())


def _parameters(modules: list[nn.Module], ignored: set[nn.Parameter]) -> list[tuple[str, Places]]:
    """The names of the parameters that the call takes, each with all its places in the modules."""
    every = [submodule for module in modules for submodule in module.modules()]
    taken = {id(parameter) for unit in units_of(every) for parameter in (*unit.sharded, *unit.leaves)}
    left_out = {id(parameter) for parameter in ignored}
    found: dict[int, tuple[str, Places]] = {}
    for submodule in every:
        if getattr(submodule, "reduces_gradients", False):  # and shards its parameters: DistributedEmbedding
            left_out.update(id(parameter) for parameter in submodule.parameters())
    for module in modules:
        for path, submodule in module.named_modules():
            for name, parameter in submodule._parameters.items():
                if parameter is None or id(parameter) in left_out or id(parameter) in taken:
                    continue
                full_name = f"{path}.{name}" if path else name
                has_extensions(full_name, parameter)  # or an error
                _C.check_not_taken(full_name, parameter)
                found.setdefault(id(parameter), (full_name, []))[1].append((submodule, name))
    return list(found.values())
