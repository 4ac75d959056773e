"""Where a tensor of whatever kind lives: its layout, without sending anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from shardwise import _C
from shardwise._C import Layout
from shardwise.dtensor import DTensor
from shardwise.interop.torch_tensors import from_torch, is_local_shards, is_torch_dtensor

__all__ = ["Pieces", "Place", "own_rank", "pieces_of", "place_of"]


@dataclass
class Place:
    layout: Layout | DTensor
    dtype: torch.dtype
    dim_names: list[str] = field(default_factory=list)  # of the mesh, where the layout does not know them


def own_rank() -> int:
    """Of this process, or of this thread where ranks are threads; 0 where no ranks have been started."""
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return _C.world_rank() or (torch.distributed.get_rank() if has_group else 0)


Pieces = list[tuple[list[int], list[int]]]


def pieces_of(wrapper: Any) -> Pieces:
    """Offsets and sizes of what a LocalShardsWrapper, ours or torch's, holds on this rank."""
    sizes = [list(shard.shape) for shard in wrapper.local_shards()]
    return list(zip(map(list, wrapper.local_offsets()), sizes, strict=False))  # torch's without shards has an offset


def place_of(value: Any, dtype: torch.dtype | None) -> Place:
    """Of a DTensor, of one of torch's and of a Layout, whose elements are of `dtype`. Raises TypeError for anything else.

    One of torch's whose pieces are a LocalShardsWrapper is converted, which may be collective: its placements do not tell where
    they are.
    """
    if isinstance(value, DTensor):
        return Place(value, value.dtype)
    if isinstance(value, Layout):
        return Place(value, dtype or torch.float32)
    if is_torch_dtensor(value):
        if is_local_shards(value.to_local()):
            return Place(from_torch(value), value.dtype)
        mesh = value.device_mesh
        layout = Layout(tuple(value.shape), mesh.mesh, value.placements)
        in_order = all(getattr(each, "split_factor", 1) == 1 for each in value.placements)
        # Else the dims of the layout's mesh stand in the order of the splits, and not in that of the names.
        return Place(layout, value.dtype, list(mesh.mesh_dim_names or ()) if in_order else [])
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    wayout = (
        "DTensor.from_local(value, mesh, placements)"
        if is_local_shards(value)
        else "distribute_tensor(value, mesh, placements)"
    )
    raise TypeError(
        f"[picture] {kind} has no layout: what is shown is a DTensor, a Layout, a DeviceMesh, a module or a Plan. Make a DTensor "
        f"of it with {wayout}."
    )
