"""Functions of torch.distributed.tensor._utils, ._redistribute and ._api that other libraries call."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from shardwise._C import Layout
from shardwise._dtensor_spec import DTensorSpec
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor, distribute_tensor
from shardwise.placement_types import Placement, Shard


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement], skip_offset: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes and offsets of this rank's local tensor of a tensor of `global_shape`. With a _StridedShard,
    whose indices have gaps, the offsets are those of the first element. If the local tensor is empty along a dim, its offset there is the
    dim's size, where no piece with elements begins. Outside the mesh: ((0,), ()). `skip_offset`: no offsets are returned. Raises ValueError if this rank's pieces
    form no local tensor.
    """
    if mesh.get_coordinate() is None:
        return (0,), ()
    sizes, offsets = _sizes_and_offsets(Layout(global_shape, mesh, placements), mesh.get_rank())
    return sizes, () if skip_offset else offsets


def _compute_local_shape_and_global_offset(
    global_shape: Sequence[int],
    mesh_shape: Sequence[int],
    my_coordinate: Sequence[int] | Callable[[int], int],
    placements: Sequence[Placement],
    skip_offset: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """compute_local_shape_and_global_offset() for the rank at `my_coordinate` of a mesh of `mesh_shape`. Needs no process group."""
    ranks = torch.arange(prod(mesh_shape)).view(tuple(mesh_shape))
    at = my_coordinate if callable(my_coordinate) else my_coordinate.__getitem__
    rank = int(ranks[tuple(at(mesh_dim) for mesh_dim in range(len(mesh_shape)))])
    sizes, offsets = _sizes_and_offsets(Layout(global_shape, ranks, placements), rank)
    return sizes, () if skip_offset else offsets


def _sizes_and_offsets(layout: Layout, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    boxes, placements = layout.boxes(rank), layout.placements
    dims = [getattr(placement, "dim", None) for placement in placements]
    is_strided = any(
        hasattr(placement, "split_factor") and dim not in dims[mesh_dim + 1 :]
        for mesh_dim, (placement, dim) in enumerate(zip(placements, dims, strict=True))
    )
    if len(boxes) != 1 and not is_strided:
        raise ValueError(
            f"[compute_local_shape_and_global_offset] {list(placements)} give this rank {len(boxes)} pieces. Ask "
            "Layout(shape, mesh, placements).boxes(rank)."
        )
    offsets, sizes = boxes[0]
    offsets = [offset if size else end for offset, size, end in zip(offsets, sizes, layout.shape, strict=True)]
    return layout.local_sizes(rank) if is_strided else tuple(sizes), tuple(offsets)


def compute_global_tensor_info(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[list[int], list[int]]:
    """The sizes and strides of the whole tensor if each rank has a piece like `tensor`. Raises RuntimeError for placements other than Shard
    without sizes, Replicate and Partial.
    """
    sizes, strides = list(tensor.shape), list(tensor.stride())
    for mesh_dim, placement in enumerate(placements):
        if type(placement).__name__ == "Shard" and getattr(placement, "sizes", None) is None:
            n_ranks, dim = mesh.size(mesh_dim), placement.dim  # type: ignore[attr-defined]
            sizes[dim] *= n_ranks
            outside = [each != dim % tensor.ndim and strides[each] >= strides[dim] for each in range(tensor.ndim)]
            strides = [stride * n_ranks if grows else stride for stride, grows in zip(strides, outside, strict=True)]
        elif not placement.is_replicate() and not placement.is_partial():
            raise RuntimeError(
                f"[compute_global_tensor_info] {placement} may have pieces of different sizes. Ask Layout(shape, mesh, placements)."
            )
    return sizes, strides


def compute_local_tensor_info(
    global_tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[list[int], list[int]]:
    """The sizes of this rank's local tensor of `global_tensor`, and its strides, which have the order of the whole tensor's. Raises ValueError if
    this rank's pieces form no local tensor.
    """
    sizes, _ = compute_local_shape_and_global_offset(global_tensor.shape, mesh, placements)
    whole = torch.empty_strided(global_tensor.shape, global_tensor.stride(), device="meta")
    return list(sizes), list(torch.empty_like(whole[tuple(slice(size) for size in sizes)]).stride())


def compute_global_tensor_shape(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Size:
    """The sizes of the whole tensor if this rank has a piece of `shape`, and other ranks may have pieces of other sizes, which one all-gather
    tells. Outside the mesh: (0,). Raises RuntimeError if the sizes differ where the tensor is not sharded.
    """
    if mesh.get_coordinate() is None:
        return torch.Size((0,))
    by_rank = on_all_ranks(shape, mesh).view(*mesh.shape, len(shape))
    sizes = list(by_rank.unbind(-1))
    for mesh_dim, placement in enumerate(placements):
        for dim, size in enumerate(sizes):
            if placement.is_shard(dim) or placement.is_shard(dim - len(sizes)):
                sizes[dim] = size.sum(mesh_dim, keepdim=True).expand_as(size)
    whole = torch.stack(sizes, -1).view(-1, len(shape))
    if not whole.eq(whole[0]).all():
        raise RuntimeError(
            f"[compute_global_tensor_shape] the ranks' pieces have the sizes {by_rank.view(-1, len(shape)).tolist()}, which form no tensor "
            f"placed as {list(placements)}. Non-sharded dimensions should have identical size across ranks. Give each rank a piece of that layout."
        )
    return torch.Size(whole[0].tolist())


def on_all_ranks(numbers: Sequence[int], mesh: DeviceMesh) -> torch.Tensor:
    """The numbers of all ranks of the mesh, which have equally many: [ranks, numbers], on the CPU. Collective over the mesh."""
    own = torch.tensor([list(numbers)], device=mesh.device_type)
    return DTensor.from_local(own, mesh, [Shard(0)] * mesh.ndim).full_tensor().cpu()


def redistribute_local_tensor(
    local_tensor: torch.Tensor, current_spec: DTensorSpec, target_spec: DTensorSpec, *, async_op: bool = False, **_: Any
) -> torch.Tensor:
    """This rank's piece of the tensor after a move from `current_spec` to `target_spec`, on the same mesh. torch's other arguments choose among its
    plans and have no effect."""
    meta = current_spec.tensor_meta
    shape, stride = (None, None) if meta is None else (meta.shape, meta.stride)
    whole = DTensor.from_local(local_tensor, current_spec.mesh, current_spec.placements, shape=shape, stride=stride)
    return whole.redistribute(target_spec.mesh, target_spec.placements, async_op=async_op).to_local()


def _shard_tensor(
    full_tensor: torch.Tensor, placements: Sequence[Placement], device_mesh: DeviceMesh | None = None
) -> DTensor:
    """distribute_tensor() of a tensor that every rank has: nothing is sent."""
    return distribute_tensor(full_tensor, device_mesh, placements, src_data_rank=None)
