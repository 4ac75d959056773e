"""A function of torch.distributed.tensor._utils that other libraries call."""

from collections.abc import Sequence

from shardwise._C import Layout
from shardwise.device_mesh import DeviceMesh
from shardwise.placement_types import Placement


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes and offsets of this rank's piece of a tensor of `global_shape`. The offsets of an empty piece are where it would begin.
    Outside the mesh: ((0,), ()). Raises ValueError if this rank has several pieces.
    """
    if mesh.get_coordinate() is None:
        return (0,), ()
    boxes = Layout(global_shape, mesh, placements).boxes(mesh.get_rank())
    if len(boxes) != 1:
        raise ValueError(
            f"[compute_local_shape_and_global_offset] {list(placements)} give this rank {len(boxes)} pieces. Ask "
            "Layout(shape, mesh, placements).boxes(rank)."
        )
    offsets, sizes = boxes[0]
    return tuple(sizes), tuple(offsets)
