"""The answers of a tensor to torch.distributed.checkpoint: one chunk per local piece that has elements, at its true offsets.

These functions know no tensor class. A tensor gives its `boxes`: (offsets, sizes) of each of this rank's pieces.
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
    """One chunk per piece that has elements."""
    return [chunk for chunk in _all_chunks(boxes) if chunk.sizes.numel() > 0]


def _all_chunks(boxes: Boxes) -> list[ChunkStorageMetadata]:
    return [ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)) for offsets, sizes in boxes]


def storage_metadata(tensor: torch.Tensor, boxes: Boxes) -> TensorStorageMetadata:
    """One chunk per piece of this rank, empty ones included; the size is the tensor's own."""
    return TensorStorageMetadata(properties(tensor), tensor.size(), _all_chunks(boxes))


def properties(tensor: torch.Tensor) -> TensorProperties:
    """The properties without `pin_memory`: to ask for it is an operator."""
    return TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad)


def write_items(tensor: torch.Tensor, name: str, boxes: Boxes, size: torch.Size) -> list[WriteItem]:
    """One item per chunk. `size`: of the whole tensor. A tensor without elements is written, too, so that the checkpoint has its name."""
    return [
        WriteItem(
            index=MetadataIndex(name, chunk.offsets, index),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties(tensor), size=size),
        )
        for index, chunk in enumerate(chunks(boxes) if size.numel() > 0 else _all_chunks(boxes))
    ]


def piece_at(index: MetadataIndex, boxes: Boxes, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """The local piece that `index` names. It shares memory, so that loading fills it. Raises ValueError if this rank has no such piece."""
    there = [piece for (offsets, _), piece in zip(boxes, pieces, strict=True) if torch.Size(offsets) == index.offset]
    if not there:
        raise ValueError(
            f"[checkpoint] this rank holds no piece of {index.fqn} at {index.offset}: it has {_all_chunks(boxes)}. Ask for one of them."
        )
    return max(there, key=torch.Tensor.numel)  # an empty piece may stand where another begins
