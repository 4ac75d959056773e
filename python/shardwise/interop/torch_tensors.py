"""Conversions to and from torch.distributed.tensor, which alias this rank's memory, of meshes, and of other tensor subclasses.

torch.distributed.tensor is imported only by programs that convert to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh as torch_device_mesh
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise._C import Layout, Partial, Placement, Replicate, Shard
from shardwise._inner_tensors import TRACERS
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.interop import fake_tensors
from shardwise.interop.when_imported import torchs_own
from shardwise.local_shards_wrapper import LocalShardsWrapper
from shardwise.module_tensors import groups_where, put

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor as TorchDTensor
    from torch.distributed.tensor import Placement as TorchPlacement


def is_torch_dtensor(value: object) -> bool:
    """Whether `value` is a torch.distributed.tensor.DTensor."""
    if type(value) in (torch.Tensor, nn.Parameter) or isinstance(value, DTensor):
        return False
    if "torch.distributed.tensor._api" not in sys.modules:
        return False  # if nobody imported it, there are none
    return isinstance(value, torchs_own("torch.distributed.tensor._api").DTensor)


def from_torch(value: TorchDTensor | nn.Module) -> Any:
    """Converts a torch.distributed.tensor.DTensor to a Shardwise DTensor with the same pieces, in the same memory, the same mesh and placements;
    differentiable.

    A _StridedShard is converted if later mesh dims split the same dim first, as fully_shard over tensor parallelism does.
    Given a module, it converts parameters, buffers and their gradients in place, and returns the module. Hooks do not change. Make
    optimizers afterwards: an optimizer that was made before has the old parameters.

    Collective over the world if the mesh has groups that Shardwise does not know yet; nothing else is sent.
    Raises TypeError for other values, and ValueError for pieces that are not where their placements say, as on mesh dims whose
    ranks are not in increasing order. After an error a module is unchanged.

    >>> import torch.distributed.tensor as dt
    >>> theirs = dt.distribute_tensor(torch.arange(8.0), torch.distributed.init_device_mesh("cpu", (4,)), [dt.Shard(0)])
    >>> ours = sw.from_torch(theirs)
    >>> ours.placements, ours.to_local().data_ptr() == theirs.to_local().data_ptr()
    ((Shard(0),), True)
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
    """Converts a Shardwise DTensor to a torch.distributed.tensor.DTensor with the same pieces, in the same memory, and the same placements;
    differentiable.

    Given a module, it converts parameters, buffers and their gradients in place, and returns the module, as from_torch does.

    Nothing is sent: torch's mesh uses the same process groups.
    Raises ValueError for layouts that torch does not support: Shards with explicit sizes or along ranks that are not in increasing order,
    EnumerableShard, RaggedShard, sparse tensors, and ranks that are threads. Raises TypeError for other values. After an error a module is unchanged.

    >>> ours = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> theirs = sw.to_torch(ours)
    >>> theirs.placements, theirs.to_local().data_ptr() == ours.to_local().data_ptr()
    ((Shard(dim=0),), True)
    """
    if isinstance(value, nn.Module):
        return _convert_module(value, lambda tensor: isinstance(tensor, DTensor), _torchs_of)
    if not isinstance(value, DTensor):
        raise TypeError(
            f"[to_torch] {type(value).__name__} is neither a shardwise.DTensor nor a module. Make a DTensor of a plain tensor with "
            "distribute_tensor or DTensor.from_local."
        )
    return _torchs_of(value)


def as_local(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor that DTensor.from_local() uses for a tensor of another library's class. Raises TypeError for torch's DTensors."""
    if is_torch_dtensor(tensor):
        raise TypeError(
            "[from_local] the local tensor is a torch.distributed.tensor.DTensor, but a piece must be a plain tensor. Convert the whole "
            "with shardwise.from_torch(tensor), or give its to_local()."
        )
    return tensor if type(tensor).__module__ in TRACERS else _without_wrapper(tensor)


def as_piece(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a LocalShardsWrapper uses for a piece of another library's class. Raises TypeError for torch's DTensors and for wrappers."""
    if is_torch_dtensor(tensor) or is_local_shards(tensor):
        raise TypeError(
            f"[LocalShardsWrapper] a piece is a {type(tensor).__module__}.{type(tensor).__name__}. Give this rank's own pieces, "
            "plain tensors."
        )
    return _without_wrapper(tensor)


def as_whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that distribute_tensor() uses for a tensor of another library's class."""
    return _ours_of(tensor) if is_torch_dtensor(tensor) else _without_wrapper(tensor)


def strided_shard(dim: int, split_factor: int) -> Any:
    return torchs_own("torch.distributed.tensor.placement_types")._StridedShard(dim, split_factor=split_factor)


def is_local_shards(tensor: object) -> bool:
    return hasattr(tensor, "local_shards") and hasattr(tensor, "local_offsets")


def shards_of(wrapper: Any) -> list[tuple[list[int], torch.Tensor]]:
    """(offsets, piece) of each local shard of a LocalShardsWrapper, ours, torch's or TorchRec's."""
    shards = wrapper.local_shards()
    offsets = wrapper.local_offsets() if shards else []  # torch's has one offset if it has no shards
    return list(zip(map(list, offsets), shards, strict=True))


def _own_pieces(tensor: Any) -> tuple[Sequence[torch.Tensor], Sequence[Sequence[int]]] | None:
    """(pieces, offsets) of torch's and TorchRec's local shards, and of a program's own class with `shards` and `shard_offsets`. None for other
    tensors, and for such a class with fewer than two pieces: it is an ordinary local tensor."""
    if is_local_shards(tensor):
        pieces = shards_of(tensor)
        return [piece for _, piece in pieces], [offsets for offsets, _ in pieces]
    shards = _value(tensor, "shards") or _value(tensor, "local_shards")
    offsets = _value(tensor, "shard_offsets")
    is_given = isinstance(shards, list | tuple) and isinstance(offsets, list | tuple) and len(shards) > 1
    return (shards, offsets) if is_given else None


def _value(tensor: object, name: str) -> Any:
    attribute = getattr(tensor, name, None)
    return attribute() if callable(attribute) else attribute


def _without_wrapper(tensor: Any) -> torch.Tensor:
    """Converts torch's and TorchRec's local shards to ours, and waits for the results of asynchronous collectives."""
    if pieces := _own_pieces(tensor):
        return LocalShardsWrapper(*pieces, dtype=tensor.dtype, device=tensor.device)
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        return cast(torch.Tensor, tensor.wait())
    fake_tensors.refuse(tensor)
    return cast(torch.Tensor, tensor)


def _check_order_of_ranks(op: str, ranks: torch.Tensor, placements: Any) -> None:
    """Raises ValueError for Shards along ranks that are not in increasing order: torch's groups and collectives order ranks by number, but its
    offsets and sizes go by the place in the mesh, so its shards are not where it says."""
    for m, placement in enumerate(placements):
        if hasattr(placement, "dim") and bool((ranks.diff(dim=m) < 0).any()):
            raise ValueError(
                f"[{op}] {placement} is along dim {m} of the mesh {ranks.tolist()}, whose ranks are not in increasing order: "
                "torch.distributed.tensor then holds shards on other ranks than it reports. Redistribute the tensor to a mesh of ranks in "
                "order."
            )


Interval = tuple[int, int]  # [begin, end)


class Split(NamedTuple):
    """How a mesh dim splits a tensor dim."""

    mesh_dim: int
    extent: int
    factor: int  # the split_factor of a _StridedShard, else 1


def check_strided(op: str, shape: Sequence[int], mesh: TorchDeviceMesh, placements: Any) -> None:
    """Raises ValueError on all ranks if a _StridedShard splits a dim unevenly, so that ranks have other parts than by splits in order: torch splits
    each of `split_factor` parts over the ranks, and then the parts of these over later mesh dims."""
    if all(getattr(placement, "split_factor", 1) == 1 for placement in placements):
        return
    ours = Layout(shape, mesh, placements)
    uneven = {}
    for dim, length in enumerate(shape):
        splits = [
            Split(mesh_dim, mesh.mesh.shape[mesh_dim], getattr(placement, "split_factor", 1))
            for mesh_dim, placement in enumerate(placements)
            if hasattr(placement, "dim") and placement.dim % len(shape) == dim
        ]
        # Equal parts do not depend on which mesh dim splits first.
        if any(split.factor > 1 for split in splits) and length % prod(split.extent for split in splits) != 0:
            uneven[dim] = splits
    for coordinate in product(*map(range, mesh.mesh.shape)) if uneven else ():
        boxes = ours.boxes(int(mesh.mesh[coordinate]))
        for dim, splits in uneven.items():
            own = _joined([(offsets[dim], offsets[dim] + sizes[dim]) for offsets, sizes in boxes])
            if torchs_indices(shape[dim], splits, coordinate) != own:
                raise ValueError(
                    f"[{op}] {list(placements)} on a mesh of {tuple(mesh.mesh.shape)} do not split dim {dim} of {shape[dim]} evenly, and "
                    "torch.distributed.tensor then splits it differently from one mesh dim after the other. Redistribute the tensor to "
                    "plain Shards first."
                )


def torchs_indices(length: int, splits: Sequence[Split], coordinate: Sequence[int]) -> list[Interval]:
    """The indices of a tensor dim of this length that torch has at a coordinate of the mesh. Cost: O(factors), not elements."""
    held = [(0, length)]
    for mesh_dim, extent, factor in splits:
        parts = [_chunk(held, factor, part) for part in range(factor)]
        held = [interval for part in parts for interval in _chunk(part, extent, coordinate[mesh_dim])]
    return _joined(held)


def _chunk(intervals: list[Interval], n_parts: int, part: int) -> list[Interval]:
    """One of the parts that torch.chunk splits into."""
    size, offset = Shard.local_shard_size_and_offset(sum(end - begin for begin, end in intervals), n_parts, part)
    taken = []
    for begin, end in intervals:
        taken.append((max(begin, begin + offset), min(end, begin + offset + size)))
        offset -= end - begin
    return [(begin, end) for begin, end in taken if begin < end]


def _joined(intervals: list[Interval]) -> list[Interval]:
    """The intervals without empty ones, and with neighbours joined."""
    joined: list[Interval] = []
    for begin, end in intervals:
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        if begin < end:
            joined.append((begin, end))
    return joined


def _ours_of(tensor: Any) -> DTensor:
    layout = (tensor.device_mesh, tensor.placements)
    _check_order_of_ranks("from_torch", tensor.device_mesh.mesh, tensor.placements)
    check_strided("from_torch", tensor.shape, *layout)
    own = _without_wrapper(tensor.to_local())
    return DTensor.from_local(own, *layout, shape=tuple(tensor.shape), stride=tensor.stride())


def _torchs_of(tensor: DTensor) -> TorchDTensor:
    placements = [_torchs_placement(placement) for placement in tensor.placements]
    if tensor.layout != torch.strided:
        raise ValueError("[to_torch] torch.distributed.tensor has no sparse tensors. Use to_dense() first.")
    _check_order_of_ranks("to_torch", tensor.device_mesh.mesh, tensor.placements)
    check_strided("to_torch", tensor.shape, tensor.device_mesh, tensor.placements)
    is_strided = any(hasattr(placement, "split_factor") for placement in tensor.placements)
    pieces = [tensor.to_local()] if is_strided and tensor.device_mesh.get_coordinate() else _C.to_pieces(tensor)
    # On ranks outside the mesh, torch makes the local tensor empty, and takes the shape of a 0-dim tensor from it.
    local = pieces[0] if pieces else torch.empty([0] * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
    own: TorchDTensor = torchs_own("torch.distributed.tensor").DTensor.from_local(
        local, _torchs_mesh(tensor.device_mesh), placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return own


def _torchs_placement(placement: Placement) -> TorchPlacement:
    torchs = torchs_own("torch.distributed.tensor")
    if hasattr(placement, "split_factor"):
        return cast("TorchPlacement", placement)
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


_torchs_meshes: WeakKeyDictionary[DeviceMesh, TorchDeviceMesh] = WeakKeyDictionary()


def _torchs_mesh(mesh: DeviceMesh) -> TorchDeviceMesh:
    if mesh not in _torchs_meshes:
        if not dist.is_initialized():
            raise ValueError(
                "[to_torch] ranks are threads here, which torch.distributed.tensor knows nothing of. Start them with torchrun."
            )
        # torch would make groups for this rank's slice of a mesh, with the names that other ranks give to the groups of theirs.
        made: Any = TorchDeviceMesh(
            mesh.device_type, mesh.mesh, mesh_dim_names=mesh.mesh_dim_names, _init_backend=False
        )
        if mesh._has_groups:
            made._dim_group_names = mesh._dim_group_names
            made._pg_registry.update(zip(made._dim_group_names, mesh.get_all_groups(), strict=False))
        _torchs_meshes[mesh] = made
    return _torchs_meshes[mesh]


def _convert_module(
    module: nn.Module, is_other: Callable[[object], bool], convert: Callable[[Any], torch.Tensor]
) -> nn.Module:
    """Converts all tensors before it changes the module, so that an error changes nothing. Shared tensors stay shared."""
    groups = groups_where(module, is_other)
    tensors = [group[0].original for group in groups]
    converted = [convert(tensor.detach()) for tensor in tensors]
    grads = [convert(tensor.grad) if is_other(tensor.grad) else tensor.grad for tensor in tensors]
    for group, value, grad in zip(groups, converted, grads, strict=True):
        put(value, group).grad = grad
    return module


def mesh_from_torch(mesh: object) -> DeviceMesh:
    """Our mesh of the same ranks. Collective over the world if groups are new."""
    mesh = getattr(mesh, "real_obj", mesh)  # a tracer's stand-in has the mesh in it
    if isinstance(mesh, DeviceMesh):
        return mesh
    if not isinstance(mesh, TorchDeviceMesh):
        raise TypeError(
            f"[device_mesh] {mesh!r} is no mesh. Pass a shardwise.DeviceMesh or a torch.distributed.device_mesh.DeviceMesh."
        )
    names = mesh.mesh_dim_names
    root = mesh._get_root_mesh()
    if root is mesh or root.mesh_dim_names is None or names is None:
        return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names)
    if set(names) <= set(root.mesh_dim_names):
        return mesh_from_torch(root)[names]
    part = _slice_of_same_ranks(mesh, root)
    if part is None:  # its dims are parts of the root's, or in another order
        theirs: Any = mesh
        return _C.mesh_among(mesh.device_type, theirs._layout.remap_to_tensor(theirs._rank_map), names)
    if mesh.ndim == 1:
        return part._as_line(names[0])
    return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names, _is_by_all=False)


def current_torch_mesh() -> TorchDeviceMesh | None:
    """The mesh of the innermost `with` block; None outside of such blocks."""
    stack = torch_device_mesh._mesh_resources.mesh_stack
    return stack[-1] if stack else None


def _slice_of_same_ranks(mesh: TorchDeviceMesh, root: TorchDeviceMesh) -> DeviceMesh | None:
    """Makes the groups of `mesh` and of its siblings, as every rank must, by slicing `root` to the same ranks. Returns the slice if its ranks are in
    the order of `mesh`, else None."""
    ours, ranks = mesh_from_torch(root), mesh.mesh.flatten().tolist()
    for n_dims in range(1, root.ndim + 1):
        for names in combinations(root.mesh_dim_names or (), n_dims):
            own = ours[names].mesh.flatten().tolist()
            if set(own) == set(ranks):
                return ours[names] if own == ranks else None
    return None
