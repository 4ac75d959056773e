"""Conversions to and from torch.distributed.tensor, which alias this rank's memory, and what is made of other tensor subclasses.

torch.distributed.tensor is imported by programs that convert to it, not by every program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise._C import Partial, Placement, Replicate, Shard
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.interop import fake_tensors
from shardwise.interop.facade import torchs_own
from shardwise.local_shards_wrapper import LocalShardsWrapper
from shardwise.module_tensors import by_tensor, places_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor as TorchDTensor
    from torch.distributed.tensor import Placement as TorchPlacement

__all__ = ["from_torch", "is_torch_dtensor", "to_torch"]


def is_torch_dtensor(value: object) -> bool:
    """Whether `value` is a torch.distributed.tensor.DTensor."""
    if "torch.distributed.tensor._api" not in sys.modules or isinstance(value, DTensor):
        return False  # where nobody imported it, there are none
    return isinstance(value, torchs_own("torch.distributed.tensor._api").DTensor)


def from_torch(value: TorchDTensor | nn.Module) -> Any:
    """Our DTensor of a torch.distributed.tensor.DTensor: same pieces, in the same memory, mesh and placements; differentiable.

    Where torch shards a dim by a later mesh dim first (_StridedShard) the mesh's dims come in the order of sharding.
    Of a module: converts its parameters, buffers and their gradients in place, and returns it. Its hooks, and optimizers that
    know the old parameters, are left as they are: make optimizers afterwards.

    Collective over the world where the mesh has groups that are new here; nothing else is sent.
    Raises TypeError for other values, ValueError for pieces that are not where their placements say, as on mesh dims whose
    ranks are not in increasing order; a module is then left as it was.
    """
    if isinstance(value, nn.Module):
        return _convert_module(value, is_torch_dtensor, _ours_of)
    if isinstance(value, DTensor) or not is_torch_dtensor(value):
        raise TypeError(
            f"[from_torch] {type(value).__name__} is neither a torch.distributed.tensor.DTensor nor a module. "
            "Make a DTensor of a plain tensor with distribute_tensor or DTensor.from_local."
        )
    return _ours_of(value)


def to_torch(value: DTensor | nn.Module) -> Any:
    """The torch.distributed.tensor.DTensor of one of ours: same pieces, in the same memory, and placements; differentiable.

    Of a module: converts its parameters, buffers and their gradients in place, and returns it, as from_torch does.

    Collective over the world for the first tensor of a mesh, of which it makes torch's mesh; nothing else is sent.
    Raises ValueError, before that, for what torch cannot hold: Shards with explicit sizes or along ranks that are not in
    increasing order, EnumerableShard, sparse tensors and ranks that are threads; a module is then left as it was. Raises
    TypeError for other values.
    """
    if isinstance(value, nn.Module):
        return _convert_module(value, lambda tensor: isinstance(tensor, DTensor), _torchs_of)
    if not isinstance(value, DTensor):
        raise TypeError(f"[to_torch] {type(value).__name__} is neither a shardwise.DTensor nor a module.")
    return _torchs_of(value)


def as_local(tensor: torch.Tensor) -> torch.Tensor:
    """What DTensor.from_local takes a tensor of another library's class for. Raises TypeError for torch's DTensors."""
    if is_torch_dtensor(tensor):
        raise TypeError(
            "[from_local] the local tensor is a torch.distributed.tensor.DTensor, and a piece is a plain tensor. Convert the "
            "whole with shardwise.from_torch(tensor), or give its to_local()."
        )
    return _without_wrapper(tensor)


def as_piece(tensor: torch.Tensor) -> torch.Tensor:
    """The same for a piece of a LocalShardsWrapper, of which torch's and TorchRec's are none either."""
    if is_torch_dtensor(tensor) or _is_local_shards(tensor):
        raise TypeError(
            f"[LocalShardsWrapper] a piece is a {type(tensor).__module__}.{type(tensor).__name__}. Give this rank's own pieces, "
            "plain tensors."
        )
    return _without_wrapper(tensor)


def as_whole(tensor: torch.Tensor) -> torch.Tensor:
    """What distribute_tensor takes a tensor of another library's class for."""
    return _ours_of(tensor) if is_torch_dtensor(tensor) else _without_wrapper(tensor)


def _is_local_shards(tensor: object) -> bool:
    return hasattr(tensor, "local_shards") and hasattr(tensor, "local_offsets")


def _without_wrapper(tensor: Any) -> torch.Tensor:
    """torch's and TorchRec's local shards as ours, and the results of asynchronous collectives once they are there."""
    if _is_local_shards(tensor):
        shards = tensor.local_shards()
        offsets = tensor.local_offsets() if shards else []  # torch's has one where there are no shards
        return LocalShardsWrapper(shards, offsets, dtype=tensor.dtype, device=tensor.device)
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        return cast(torch.Tensor, tensor.wait())
    fake_tensors.refuse(tensor)
    return cast(torch.Tensor, tensor)


def _check_order_of_ranks(op: str, ranks: torch.Tensor, placements: Any) -> None:
    """Raises ValueError where torch has no sound answer to which rank holds which shard.

    Its groups know ranks in increasing order, and so do its collectives; offsets and sizes go by the place in the mesh.
    """
    for m, placement in enumerate(placements):
        if placement.is_shard() and bool((ranks.diff(dim=m) < 0).any()):
            raise ValueError(
                f"[{op}] {placement} is along dim {m} of the mesh {ranks.tolist()}, where ranks are not in increasing order: there "
                "torch.distributed.tensor's shards are not where it says. Redistribute the tensor to a mesh of ranks in order."
            )


def _ours_of(tensor: Any) -> DTensor:
    _check_order_of_ranks("from_torch", tensor.device_mesh.mesh, tensor.placements)
    mesh, placements = _in_order_of_sharding(tensor.device_mesh, tensor.placements)
    return DTensor.from_local(
        _without_wrapper(tensor.to_local()), mesh, placements, shape=tuple(tensor.shape), stride=tensor.stride()
    )


def _in_order_of_sharding(mesh: TorchDeviceMesh, placements: Any) -> tuple[Any, list[Any]]:
    """The mesh and placements under which plain Shards, each of what the mesh dims before it leave, are torch's layout.

    A _StridedShard on mesh dim m shards pieces that `split_factor` ranks of later mesh dims have sharded before.
    """
    if not any(hasattr(placement, "split_factor") for placement in placements):
        return mesh, list(placements)
    extents = mesh.mesh.shape

    def is_in_order(order: tuple[int, ...]) -> bool:
        for place, m in enumerate(order):
            if not hasattr(placements[m], "dim"):
                continue
            earlier = [n for n in order[:place] if n > m and getattr(placements[n], "dim", None) == placements[m].dim]
            if prod(extents[n] for n in earlier) != getattr(placements[m], "split_factor", 1):
                return False
        return True

    order = next(filter(is_in_order, permutations(range(len(extents)))), None)
    if order is None:
        raise ValueError(
            f"[from_torch] no order of the dims of a {tuple(extents)} mesh shards as {list(placements)} says. Redistribute the "
            "tensor to plain Shards first."
        )
    names = mesh.mesh_dim_names
    ours = DeviceMesh(
        mesh.device_type, mesh.mesh.permute(order), mesh_dim_names=None if names is None else [names[m] for m in order]
    )
    return ours, [Shard(placements[m].dim) if hasattr(placements[m], "dim") else placements[m] for m in order]


def _torchs_of(tensor: DTensor) -> TorchDTensor:
    placements = [_torchs_placement(placement) for placement in tensor.placements]
    if tensor.layout != torch.strided:
        raise ValueError("[to_torch] torch.distributed.tensor has no sparse tensors. Use to_dense() first.")
    _check_order_of_ranks("to_torch", tensor.device_mesh.mesh, tensor.placements)
    pieces = _C.to_pieces(tensor)
    # On ranks outside the mesh torch makes it empty, and takes the shape of one without dims from it.
    local = pieces[0] if pieces else torch.empty([0] * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
    own: TorchDTensor = torchs_own("torch.distributed.tensor").DTensor.from_local(
        local, _torchs_mesh(tensor.device_mesh), placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return own


def _torchs_placement(placement: Placement) -> TorchPlacement:
    torchs = torchs_own("torch.distributed.tensor")
    if isinstance(placement, Shard) and placement.sizes is None:
        return torchs.Shard(placement.dim)
    if isinstance(placement, Replicate):
        return torchs.Replicate()
    if isinstance(placement, Partial):
        return torchs.Partial(placement.reduce_op)
    split = f"Shard({placement.dim})" if isinstance(placement, Shard) else "Shard(0)"
    raise ValueError(
        f"[to_torch] torch.distributed.tensor cannot hold {placement}: it splits a dim as torch.chunk does. Redistribute the "
        f"tensor to [{split}] or [Replicate()] first."
    )


_torchs_meshes: dict[DeviceMesh, TorchDeviceMesh] = {}


def _torchs_mesh(mesh: DeviceMesh) -> TorchDeviceMesh:
    if mesh not in _torchs_meshes:
        if not dist.is_initialized():
            raise ValueError(
                "[to_torch] ranks are threads here, which torch.distributed.tensor knows nothing of. Start them with torchrun."
            )
        _torchs_meshes[mesh] = TorchDeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    return _torchs_meshes[mesh]


def _convert_module(
    module: nn.Module, is_other: Callable[[object], bool], convert: Callable[[Any], torch.Tensor]
) -> nn.Module:
    """Converts everything first, so that an error leaves the module as it was. Shared tensors stay shared."""
    places = [place for place in places_of(module) if is_other(place.original)]
    converted = {}
    for tensor in (group[0].original for group in by_tensor(places)):
        result = convert(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            result = nn.Parameter(result, requires_grad=tensor.requires_grad)
        result.grad = convert(tensor.grad) if is_other(tensor.grad) else tensor.grad
        converted[id(tensor)] = result
    for place in places:
        place.tensor = converted[id(place.original)]
    return module
