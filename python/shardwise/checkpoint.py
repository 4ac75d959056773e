"""What torch.distributed.checkpoint asks of a tensor: one chunk per local piece, at its true offsets.

Knows no tensor class: a tensor hands in its `boxes`, (offsets, sizes) of each of this rank's pieces.
"""

from collections.abc import Sequence

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Boxes = Sequence[tuple[Sequence[int], Sequence[int]]]


def chunks(boxes: Boxes) -> list[ChunkStorageMetadata]:
    """One chunk per piece, empty ones included."""
    return [ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)) for offsets, sizes in boxes]


def storage_metadata(tensor: torch.Tensor, boxes: Boxes) -> TensorStorageMetadata:
    """One chunk per piece of this rank; the size is the tensor's own."""
    return TensorStorageMetadata(properties(tensor), tensor.size(), chunks(boxes))


def properties(tensor: torch.Tensor) -> TensorProperties:
    """Without asking whether the memory is pinned: that is an operator."""
    return TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad)


def write_items(tensor: torch.Tensor, name: str, boxes: Boxes, size: torch.Size) -> list[WriteItem]:
    """One item per piece that has elements. `size`: of the whole tensor."""
    return [
        WriteItem(
            index=MetadataIndex(name, chunk.offsets, index),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties(tensor), size=size),
        )
        for index, chunk in enumerate(chunks(boxes))
        if chunk.sizes.numel() > 0
    ]


def piece_at(index: MetadataIndex, boxes: Boxes, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """The local piece that `index` names; it shares memory, so that loading fills it.

    Raises ValueError where this rank has no such piece.
    """
    for (offsets, _), piece in zip(boxes, pieces, strict=True):
        if torch.Size(offsets) == index.offset and piece.numel() > 0:  # an empty piece may stand where another begins
            return piece
    raise ValueError(f"[checkpoint] this rank holds no piece of {index.fqn} at {index.offset}: it has {chunks(boxes)}.")
