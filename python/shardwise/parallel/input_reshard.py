"""input_reshard: a module's saved activations as shards."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.module_tensors import run_within
from shardwise.placement_types import Replicate, Shard

__all__ = ["input_reshard"]


def input_reshard(module: nn.Module, tp_device_mesh: DeviceMesh, input_reshard_dim: int | None = None) -> nn.Module:
    """Saves memory. Between forward and backward of `module`, each rank keeps only its shard, along `input_reshard_dim`, of tensors that all ranks
    of `tp_device_mesh` have, and the backward gathers them. These are replicated DTensors, and all plain tensors that have the dim.

    Plain tensors that the forward saves must therefore be equal on all ranks, as torch's function expects, too: gradients are wrong otherwise. The
    columns of one rank behind a ColwiseParallel with `use_local_output=True` are not equal; keep them DTensors. None: nothing changes. Returns
    `module`.
    """
    if input_reshard_dim is None:
        return module
    hooks = [partial(hook, tp_device_mesh, input_reshard_dim) for hook in (_pack_hook_tp, _unpack_hook_tp)]
    run_within(module, lambda: saved_tensors_hooks(*hooks))
    return module


class _Saved(NamedTuple):
    """A tensor that is saved as it is, or the shard of one."""

    tensor: Any
    is_shard: bool
    is_plain: bool  # whether the tensor was


def _pack_hook_tp(mesh: DeviceMesh, dim: int, x: torch.Tensor) -> Any:
    with torch.no_grad():
        whole = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh)
        is_replica = whole.device_mesh == mesh and all(each.is_replicate() for each in whole.placements)
        is_kept = not is_replica or not -x.dim() <= dim < x.dim() or x.numel() < mesh.size()
        saved = x if is_kept else whole.redistribute(mesh, [Shard(dim)] * mesh.ndim)
        return _Saved(saved, not is_kept, not isinstance(x, DTensor))


def _unpack_hook_tp(mesh: DeviceMesh, dim: int, saved: Any) -> torch.Tensor:
    if not saved.is_shard:
        return saved.tensor
    with torch.no_grad():
        whole = saved.tensor.redistribute(mesh, [Replicate()] * mesh.ndim)
        return whole.to_local() if saved.is_plain else whole
