"""Conversions to and from torch.distributed._shard's ShardedTensor, the older form of a sharded table. Values are aliased.

Needs torch.distributed's process group: a ShardedTensor names its ranks by it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard

from shardwise import _C
from shardwise._C import Shard as ShardPlacement
from shardwise.device_mesh import DeviceMesh, init_device_mesh
from shardwise.dtensor import DTensor
from shardwise.local_shards_wrapper import LocalShardsWrapper

__all__ = ["from_sharded_tensor", "to_sharded_tensor"]


def from_sharded_tensor(sharded: ShardedTensor, device_mesh: DeviceMesh | None = None) -> DTensor:
    """The DTensor of the same pieces, on `device_mesh` (all ranks, where it is not given). Its to_local() is a wrapper."""
    shards = sharded.local_shards()
    properties = sharded.metadata().tensor_properties
    wrapper = LocalShardsWrapper(
        local_shards=[shard.tensor for shard in shards],
        offsets=[shard.metadata.shard_offsets for shard in shards],
        dtype=properties.dtype,
    )
    mesh = device_mesh
    if mesh is None:
        placement = sharded.metadata().shards_metadata[0].placement
        assert placement is not None, "[from_sharded_tensor] a piece has no placement. Give device_mesh=."
        mesh = init_device_mesh(placement.device().type, (dist.get_world_size(),))
    return DTensor.from_local(wrapper, mesh, [ShardPlacement(0)] * mesh.ndim, shape=tuple(sharded.size()))


def to_sharded_tensor(tensor: DTensor) -> ShardedTensor:
    """The ShardedTensor of the same pieces. Raises ValueError for tensors that are replicated or Partial."""
    extents = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    if any(placement.is_partial() or (placement.is_replicate() and n_ranks > 1) for placement, n_ranks in extents):
        raise ValueError(
            f"[to_sharded_tensor] {list(tensor.placements)} leaves copies or partial sums on ranks, a ShardedTensor has one "
            "owner per element. Redistribute it to [Shard(0)]."
        )
    detached = tensor.detach()
    pieces = [(rank, piece) for rank, *piece in _C.boxes_of_all(detached) if torch.Size(piece[1]).numel() > 0]
    everywhere = [
        ShardMetadata(offsets, sizes, f"rank:{rank}/{_device_of(rank, tensor.device.type)}")
        for rank, (offsets, sizes) in pieces
    ]
    own = [piece for piece in _C.to_pieces(detached) if piece.numel() > 0]
    metadata = [each for each, (rank, _) in zip(everywhere, pieces, strict=True) if rank == dist.get_rank()]
    properties = TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad)
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(piece, each) for piece, each in zip(own, metadata, strict=True)],
        ShardedTensorMetadata(everywhere, tensor.size(), properties),
    )


def _device_of(rank: int, device_type: str) -> str:
    """torchrun's habit: one device per process of a machine."""
    return device_type if device_type == "cpu" else f"{device_type}:{rank % torch.accelerator.device_count()}"
