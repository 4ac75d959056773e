"""This rank's pieces of a ShardedTensor, or of a torch DTensor over local shards, and their places."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from shardwise.interop.torch_tensors import is_local_shards, is_torch_dtensor, shards_of
from shardwise.local_shards_wrapper import LocalShardsWrapper

Box = tuple[list[int], list[int]]  # offsets, sizes
Pieces = list[tuple[list[int], torch.Tensor]]  # offsets, values


@dataclass
class Held:
    """One rank's part of a tensor, described for the other ranks."""

    kind: Literal["pieces", "plain", "DTensor"]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device_type: str
    boxes: list[Box]
    strides: list[int]  # of the first piece
    problem: str  # why the pieces cannot be of one tensor, or ""


def is_sharded_tensor(value: object) -> bool:
    """Whether `value` is a torch.distributed._shard.sharded_tensor.ShardedTensor."""
    module = sys.modules.get("torch.distributed._shard.sharded_tensor.api")
    return module is not None and isinstance(value, module.ShardedTensor)


def pieces_of(value: Any) -> Pieces | None:
    """(offsets, piece) of this rank's pieces that have elements, sorted by offsets; None if the value does not consist of pieces."""
    if is_sharded_tensor(value):
        pieces = [(list(shard.metadata.shard_offsets), shard.tensor) for shard in value.local_shards()]
    elif is_torch_dtensor(value) and is_local_shards(value._local_tensor):
        pieces = shards_of(value._local_tensor)
    else:
        return None
    return sorted((piece for piece in pieces if piece[1].numel() > 0), key=lambda piece: piece[0])


def wrapper_of(pieces: Pieces, dtype: torch.dtype) -> LocalShardsWrapper:
    """Our wrapper over the pieces. `dtype` is used if there are none."""
    return LocalShardsWrapper([piece.detach() for _, piece in pieces], [offsets for offsets, _ in pieces], dtype=dtype)


def held(value: Any) -> Held:
    """The description of this rank's part of any tensor."""
    pieces = pieces_of(value)
    of_all = value.metadata() if is_sharded_tensor(value) else None  # size() and dtype of a ShardedTensor warn
    shape, dtype = (value.shape, value.dtype) if of_all is None else (of_all.size, of_all.tensor_properties.dtype)
    found = Held("pieces", tuple(shape), dtype, "", [], [], "")
    if pieces is None:
        found.kind, found.device_type = ("DTensor" if is_torch_dtensor(value) else "plain"), value.device.type
        return found
    if pieces:
        first = pieces[0][1]
        found.dtype, found.device_type, found.strides = first.dtype, first.device.type, list(first.stride())
    found.boxes = [(offsets, list(piece.shape)) for offsets, piece in pieces]
    try:
        wrapper_of(pieces, found.dtype)
    except (TypeError, ValueError) as error:
        found.problem = str(error)
    return found


def difference(all_held: Mapping[int, Held | None]) -> str:
    """Why the parts of the ranks are not of one tensor; "" if they are. `all_held`: the parts by rank."""
    there = [(rank, held) for rank, held in all_held.items() if held is not None]
    for rank, held in there:
        first_rank, first = there[0]
        if held.problem:
            return f"rank {rank}: {held.problem}"
        if (held.kind, held.shape) != (first.kind, first.shape):
            return (
                f"rank {first_rank} has a tensor of kind {first.kind} and shape {list(first.shape)}, rank {rank} one of kind "
                f"{held.kind} and shape {list(held.shape)}. Give all ranks' parts of one tensor."
            )
    holders = [(rank, held) for rank, held in there if held.boxes or held.kind != "pieces"]
    for rank, held in holders:
        first_rank, first = holders[0]
        if (held.dtype, held.device_type) != (first.dtype, first.device_type):
            return (
                f"rank {first_rank} has {first.dtype} on {first.device_type}, rank {rank} {held.dtype} on {held.device_type}. "
                "Convert one of them."
            )
    absent = [rank for rank, held in all_held.items() if held is None]
    if absent and first.kind != "pieces":
        return f"rank {absent[0]} lacks it, and it is not sharded. Give it on all ranks."
    return ""
