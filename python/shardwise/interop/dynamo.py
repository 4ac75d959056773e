"""Tells torch.compile's front end about our C++ functions, which it cannot trace into."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import ModuleType
from typing import Any

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C, forward_scope
from shardwise._symbols import NO_SYMBOLS, divides, with_numbers, with_whole_symbols
from shardwise._torch_versions import register_mesh
from shardwise._tracing import run_traced
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.fsdp import unit

# Methods of a mesh whose results are meshes or groups. For a tracer they are constants.
_GIVE_MESHES = ("get_all_groups", "__getitem__", "_flatten", "_unflatten", "_get_root_mesh")


def register(dynamo: ModuleType) -> None:
    """Lets graphs contain DTensor.from_local and the inputs and outputs of modules with styles, and keeps torch.compile from tracing the hooks around forwards."""
    dynamo.allow_in_graph(_from_local_in_graph)
    dynamo.substitute_in_graph(DTensor.from_local, skip_signature_check=True)(_from_local)
    dynamo.allow_in_graph(_lay_out_in_graph)
    dynamo.substitute_in_graph(_C.lay_out, skip_signature_check=True)(_lay_out)
    register_mesh(DeviceMesh, TorchDeviceMesh, (*_GIVE_MESHES, "get_group"))
    for name in _GIVE_MESHES:
        if name in vars(DeviceMesh):
            setattr(DeviceMesh, name, dynamo.assume_constant_result(_of_real_mesh(vars(DeviceMesh)[name])))
    DeviceMesh.get_group = _traceable_get_group(dynamo, DeviceMesh.get_group)
    forward_scope._open = dynamo.disable(forward_scope._open)
    for name in ("enter", "leave"):
        disabled = dynamo.disable(
            getattr(unit.Unit, name), reason="fully_shard gathers and frees parameters between graphs"
        )
        setattr(unit.Unit, name, disabled)
    hooks = (forward_scope._enter, forward_scope._leave, unit._before_forward, unit._after_forward)
    for function in (*hooks, run_traced):
        dynamo.eval_frame.skip_code(function.__code__)


def mark(original: Any, tensor: Any, index: Any, *args: Any, **options: Any) -> None:
    """Marks sizes, except those of a DTensor's divided dims, and those marked as unknown: these have no effect, and warn. `original`: mark_dynamic or
    mark_unbacked."""
    dims = [*index] if isinstance(index, (list, tuple)) else [index]
    if isinstance(tensor, DTensor):
        is_unknown = original.__name__ == "mark_unbacked"
        kept = [dim for dim in dims if not is_unknown and not divides(tensor.placements, dim, tensor.dim())]
        if len(kept) < len(dims):
            warnings.warn(f"[{original.__name__}] {NO_SYMBOLS}", stacklevel=3)
        if not kept:
            return
        index = kept if isinstance(index, (list, tuple)) else index  # torch calls itself for each of a list
    original(tensor, index, *args, **options)


def _of_real_mesh(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` of a mesh, which a tracer may call with its stand-in for the mesh."""

    @wraps(method)
    def call(mesh: Any, *args: Any, **options: Any) -> Any:
        return method(mesh.real_obj if isinstance(mesh, FakeScriptObject) else mesh, *args, **options)

    return call


def _traceable_get_group(dynamo: ModuleType, get_group: Callable[..., Any]) -> Callable[..., Any]:
    """DeviceMesh.get_group for tracers: they see a lookup in the mesh's dict, so a compiled function can return the group."""

    def register(mesh: DeviceMesh, mesh_dim: int | str | None) -> str | None:
        group = get_group(mesh, mesh_dim)
        flattened = mesh._get_root_mesh()._flatten_mapping.values()
        # All at once: a tracer reads the dict once. Others may be destroyed, or not be there.
        for owner, dim in [*((mesh, dim) for dim in range(mesh.ndim)), *((flat, 0) for flat in flattened)]:
            with suppress(RuntimeError, ValueError):
                if (each := get_group(owner, dim)) is not None:
                    mesh._pg_registry[each.group_name] = each
        return None if group is None else str(group.group_name)

    name_in_graph = dynamo.assume_constant_result(_of_real_mesh(register))

    @wraps(get_group)
    def call(mesh: DeviceMesh, mesh_dim: int | str | None = None) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return get_group(mesh, mesh_dim)
        name = name_in_graph(mesh, mesh_dim)
        return None if name is None else mesh._pg_registry[name]

    return call


def _from_local(
    local_tensor: torch.Tensor,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    run_check: bool = False,
    **others: Any,
) -> torch.Tensor:
    # The mesh of a `with` block, and the comparison of ranks, exist only when the program runs.
    if device_mesh is None or run_check:
        torch._dynamo.graph_break()
    return _from_local_in_graph(local_tensor, device_mesh, placements, **others)


def _from_local_in_graph(
    local_tensor: torch.Tensor, device_mesh: Any, placements: Any, shape: Any = None, stride: Any = None, **others: Any
) -> torch.Tensor:
    given = with_numbers(local_tensor) if shape is not None else with_whole_symbols(local_tensor, placements)
    return _C.from_local(given, device_mesh, placements, shape=_numbers(shape), stride=_numbers(stride), **others)


def _lay_out(*arguments: Any) -> torch.Tensor:
    return _lay_out_in_graph(*arguments)


def _lay_out_in_graph(tensor: torch.Tensor, device_mesh: Any, *layouts: Any) -> torch.Tensor:
    given = tensor if isinstance(tensor, DTensor) else with_whole_symbols(tensor, layouts[0])
    return _C.lay_out(given, device_mesh, *layouts)


def _numbers(sizes: Any) -> list[int] | None:
    return None if sizes is None else [int(size) for size in sizes]
