"""Conversions to and from torch.distributed._shard's ShardedTensor, the older form of a sharded table. Values are aliased.

They need torch.distributed's process group, by which a ShardedTensor names its ranks.
"""

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard

from shardwise import _C
from shardwise.device_mesh import DeviceMesh, init_device_mesh
from shardwise.dtensor import DTensor
from shardwise.interop.torchrec_states import pieces_of, wrapper_of

__all__ = ["from_sharded_tensor", "to_sharded_tensor"]


def from_sharded_tensor(sharded: ShardedTensor, device_mesh: DeviceMesh | None = None) -> DTensor:
    """The DTensor of the same pieces, on `device_mesh` (default: a 1-D mesh of all ranks). Its to_local() is a LocalShardsWrapper.

    Nothing is sent: every rank of a ShardedTensor knows all pieces. Raises ValueError if pieces overlap, leave holes, or are on ranks outside
    the mesh.

    >>> from shardwise.sharded_tensor import from_sharded_tensor, to_sharded_tensor
    >>> theirs = to_sharded_tensor(sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> from_sharded_tensor(theirs, mesh).placements
    (Shard(0),)
    """
    metadata = sharded.metadata()
    boxes: dict[int, list[tuple[list[int], list[int]]]] = {}
    for piece in metadata.shards_metadata:
        if torch.Size(piece.shard_sizes).numel() > 0:
            boxes.setdefault(_rank_of(piece), []).append((list(piece.shard_offsets), list(piece.shard_sizes)))
    mesh = device_mesh
    if mesh is None:
        placement = metadata.shards_metadata[0].placement
        assert placement is not None
        mesh = init_device_mesh(placement.device().type, (dist.get_world_size(),))
    ranks = mesh.mesh.flatten().tolist()
    if outside := sorted(set(boxes) - set(ranks)):
        raise ValueError(
            f"[from_sharded_tensor] rank {outside[0]} holds pieces and is outside the mesh {mesh}. Give a mesh of all holders."
        )
    pieces = pieces_of(sharded) or []
    strides = list(pieces[0][1].stride()) if pieces else []
    dtype = metadata.tensor_properties.dtype
    by_rank = [sorted(boxes.get(rank, [])) for rank in ranks]
    return _C.from_known_shards(wrapper_of(pieces, dtype), mesh, tuple(metadata.size), dtype, strides, by_rank)


def to_sharded_tensor(tensor: DTensor) -> ShardedTensor:
    """The ShardedTensor of the same pieces. Raises ValueError for tensors that are replicated or Partial.

    >>> from shardwise.sharded_tensor import to_sharded_tensor
    >>> theirs = to_sharded_tensor(sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> theirs.local_shards()[0].metadata.shard_sizes
    [2, 2]
    """
    extents = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    if any(placement.is_partial() or (placement.is_replicate() and n_ranks > 1) for placement, n_ranks in extents):
        raise ValueError(
            f"[to_sharded_tensor] {list(tensor.placements)} leaves copies or partial sums on ranks, but a ShardedTensor has one owner per "
            "element. Redistribute it to [Shard(0)]."
        )
    detached = tensor.detach()
    pieces = [(rank, piece) for rank, *piece in _C.boxes_of_all(detached) if torch.Size(piece[1]).numel() > 0]
    everywhere = [
        ShardMetadata(offsets, sizes, f"rank:{rank}/{_device_of(rank, tensor.device.type)}")
        for rank, (offsets, sizes) in pieces
    ]
    own = [piece for piece in _C.to_pieces(detached) if piece.numel() > 0]
    metadata = [each for each, (rank, _) in zip(everywhere, pieces, strict=True) if rank == dist.get_rank()]
    properties = TensorProperties(dtype=tensor.dtype, requires_grad=False)
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(piece, each) for piece, each in zip(own, metadata, strict=True)],
        ShardedTensorMetadata(everywhere, tensor.size(), properties),
    )


def _rank_of(piece: ShardMetadata) -> int:
    rank = None if piece.placement is None else piece.placement.rank()
    if rank is None:
        raise ValueError(
            f"[from_sharded_tensor] the piece at {list(piece.shard_offsets)} names no rank. Give its placement."
        )
    return rank


def _device_of(rank: int, device_type: str) -> str:
    """The device of a rank, as torchrun assigns them: one device per process of a machine."""
    return device_type if device_type == "cpu" else f"{device_type}:{rank % torch.accelerator.device_count()}"
