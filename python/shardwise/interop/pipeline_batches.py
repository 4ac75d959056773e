"""Splits a batch that is a DTensor into the parts of a pipeline: each part has the rows that it has of a plain batch.

torch would split each rank's rows, so that a part had other rows than the same part of a plain target. Here, sharded rows move, so that each part
is laid out like the whole batch, and outputs are merged in the order of the batch.
"""

from collections.abc import Sequence
from typing import Any

from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement, Replicate, Shard


def split(original: Any, tensor: Any, spec: Any, n_parts: int) -> Any:
    """Replaces _split_tensor()."""
    if not _is_split(tensor, spec.split_dim) or tensor.shape[spec.split_dim] < n_parts:
        return original(tensor, spec, n_parts)
    dim = spec.split_dim % tensor.ndim
    parts, begin = [], 0
    quotient, remainder = divmod(tensor.shape[dim], n_parts)
    for number in range(n_parts):
        size = quotient + (number < remainder)
        part = tensor.narrow(dim, begin, size).redistribute(placements=_along(tensor.placements, dim))
        if tensor.requires_grad and tensor.is_leaf:
            part.retain_grad()  # torch reads the gradients of parts
        parts.append(part)
        begin += size
    return parts


def merge(original: Any, chunks: Sequence[Any], chunk_spec: Any) -> Any:
    """Replaces merge_chunks()."""
    if not chunks:
        return original(chunks, chunk_spec)
    first, structure = tree_flatten(chunks[0])
    specs = [None] * len(first) if chunk_spec is None else tree_leaves(chunk_spec)
    dims = [0 if chunk_spec is None else getattr(each, "split_dim", None) for each in specs]
    moved = [
        _along(value.placements, dim % value.ndim) if _is_split(value, dim) else None
        for value, dim in zip(first, dims, strict=True)
    ]
    if not any(moved):
        return original(chunks, chunk_spec)
    whole = [
        tree_unflatten(
            [
                value if placements is None else value.redistribute(placements=_whole(placements, dim % value.ndim))
                for value, placements, dim in zip(tree_leaves(chunk), moved, dims, strict=True)
            ],
            structure,
        )
        for chunk in chunks
    ]
    merged = iter(moved)

    def laid_out(value: Any) -> Any:
        placements = next(merged)
        return value if placements is None else value.redistribute(placements=placements)

    return tree_map(laid_out, original(whole, chunk_spec))


def _is_split(tensor: Any, dim: int | None) -> bool:
    """True if the ranks have different indices of `dim`. False if there is no such dim: torch raises the error."""
    if dim is None or not isinstance(tensor, DTensor) or not -tensor.ndim <= dim < tensor.ndim:
        return False
    return any(_splits(placement, dim % tensor.ndim) for placement in tensor.placements)


def _splits(placement: Placement, dim: int) -> bool:
    if isinstance(placement, Shard):
        return placement.dim == dim
    return not placement.is_replicate() and not placement.is_partial()


def _along(placements: Sequence[Placement], dim: int) -> list[Placement]:
    """The placements for a tensor with any length of `dim`."""
    return [Shard(dim) if _splits(placement, dim) else placement for placement in placements]


def _whole(placements: Sequence[Placement], dim: int) -> list[Placement]:
    return [Replicate() if _splits(placement, dim) else placement for placement in placements]
