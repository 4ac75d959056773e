"""Our modules and the modules of torch that they stand for."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from shardwise.interop.facade import torchs_own

# Each of our modules, and the modules of torch.distributed that define or re-export its names.
_STANDS_FOR = {
    "shardwise": ("tensor", "tensor._api", "_tensor", "_tensor.api"),
    "shardwise._api": ("tensor._api",),
    "shardwise._dtensor_spec": ("tensor._dtensor_spec", "_tensor.placement_types"),
    "shardwise._utils": ("tensor._utils", "tensor._redistribute"),
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
