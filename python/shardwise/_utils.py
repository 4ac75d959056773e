"""Functions of torch.distributed.tensor._utils that other libraries call."""

from collections.abc import Sequence

import torch

from shardwise._C import Layout
from shardwise.device_mesh import DeviceMesh
from shardwise.placement_types import Placement


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes and offsets of this rank's local tensor of a tensor of `global_shape`. The offsets of an empty one are where it would begin. With
    a _StridedShard, whose indices have gaps, they are those of the first element. Outside the mesh: ((0,), ()). Raises ValueError if this rank's
    pieces form no local tensor.
    """
    if mesh.get_coordinate() is None:
        return (0,), ()
    layout = Layout(global_shape, mesh, placements)
    boxes = layout.boxes(mesh.get_rank())
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
    return layout.local_sizes(mesh.get_rank()) if is_strided else tuple(sizes), tuple(offsets)


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
