"""What torch.distributed.checkpoint asks of a tensor: one chunk per local piece, at its true offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from shardwise import _C
from shardwise.local_shards_wrapper import LocalShardsWrapper

if TYPE_CHECKING:
    from shardwise.dtensor import DTensor


def chunks(tensor: DTensor | LocalShardsWrapper) -> list[ChunkStorageMetadata]:
    """Where this rank's pieces stand. Raises ValueError for Partial tensors, whose pieces are not values."""
    if isinstance(tensor, LocalShardsWrapper):
        places = zip(tensor.local_offsets(), tensor.local_sizes(), strict=True)
        return [ChunkStorageMetadata(offsets=offsets, sizes=sizes) for offsets, sizes in places]
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(
            f"[checkpoint] a tensor placed as {list(tensor.placements)} holds sums to be, not values. Redistribute it first."
        )
    return [
        ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
        for offsets, sizes in _C.boxes_of(tensor)
    ]


def storage_metadata(wrapper: LocalShardsWrapper) -> TensorStorageMetadata:
    """One chunk per piece of this rank; the size is the wrapper's own."""
    return TensorStorageMetadata(properties(wrapper), wrapper.size(), chunks(wrapper))


def properties(tensor: DTensor | LocalShardsWrapper) -> TensorProperties:
    """Without asking whether the memory is pinned: that is an operator."""
    return TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad)


def whole_size(tensor: DTensor | LocalShardsWrapper) -> torch.Size:
    """Of the whole tensor. A wrapper alone knows no other ranks: its own pieces reach as far as the table does.

    Where ranks share a table it is saved as a DTensor.
    """
    if not isinstance(tensor, LocalShardsWrapper):
        return tensor.size()
    ends = [[o + n for o, n in zip(chunk.offsets, chunk.sizes, strict=True)] for chunk in chunks(tensor)]
    return torch.Size(max(along) for along in zip(*ends, strict=True))


def write_items(tensor: DTensor | LocalShardsWrapper, name: str) -> list[WriteItem]:
    """One item per piece that has elements."""
    size = whole_size(tensor)
    return [
        WriteItem(
            index=MetadataIndex(name, chunk.offsets, index),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties(tensor), size=size),
        )
        for index, chunk in enumerate(chunks(tensor))
        if chunk.sizes.numel() > 0
    ]


def piece_at(tensor: DTensor | LocalShardsWrapper, index: MetadataIndex) -> torch.Tensor:
    """The local piece that `index` names; it shares memory, so that loading fills it."""
    found = chunks(tensor)
    detached = tensor.detach()
    pieces = detached.local_shards() if isinstance(detached, LocalShardsWrapper) else _C.to_pieces(detached)
    for chunk, piece in zip(found, pieces, strict=True):
        if chunk.offsets == index.offset and piece.numel() > 0:  # an empty piece may stand where another begins
            return piece
    raise ValueError(f"[checkpoint] this rank holds no piece of {index.fqn} at {index.offset}: it has {found}.")
