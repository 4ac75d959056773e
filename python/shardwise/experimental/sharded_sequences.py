"""Computes models on long sequences; each rank has some positions of them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from shardwise._utils import on_all_ranks
from shardwise.device_mesh import DeviceMesh, mesh_or_current
from shardwise.dtensor import DTensor
from shardwise.experimental.sequence_attention import SequenceAttention, SequenceSplit

ROTATE_METHODS = ("allgather", "alltoall")


@dataclass
class SequenceOptions:
    """`enable_load_balance`: each rank has positions from the head and from the tail, so that causal attention is equal work for all ranks.
    `rotate_method` has no effect: keys and values are always gathered.
    """

    enable_load_balance: bool = True
    rotate_method: str = "allgather"


options = SequenceOptions()


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: list[torch.Tensor] | None = None,
    buffer_seq_dims: list[int] | None = None,
    no_restore_buffers: set[torch.Tensor] | None = None,
) -> Iterator[None]:
    """A `with` block in which a model computes on this rank's positions of each sequence, with plain tensors.

        with context_parallel(mesh, buffers=[ids, labels, positions], buffer_seq_dims=[1, 1, 0]):
            loss = criterion(model(ids), labels)      # this rank's positions
            loss.backward()

    `buffers`: plain tensors that are equal on all ranks; `buffer_seq_dims`: the dim of positions of each buffer. In the block the buffers
    hold this rank's positions; after it they have their old values, except those in `no_restore_buffers`. A sequence may have any length.
    F.scaled_dot_product_attention gathers keys and values, so each query sees the whole sequence. An attn_mask has columns for all keys,
    and rows for all queries or for this rank's. Gradients of keys and values are summed over the ranks; gradients of parameters are each
    rank's own.

    Cost: every rank holds the keys and values of the whole sequence. The mesh must have one dim. Raises ValueError, before any buffer
    changes, if buffers and dims do not fit each other.

    >>> q = torch.ones(1, 2, 16, 8)  # 16 positions, the same on all ranks
    >>> with sw.experimental.context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
    ...     F.scaled_dot_product_attention(q, q, q, is_causal=True).shape  # of this rank's 4, over all 16
    torch.Size([1, 2, 4, 8])
    """
    mesh = mesh_or_current(mesh)
    buffers, dims = buffers or [], buffer_seq_dims or []
    kept = no_restore_buffers or set()
    check_buffers(mesh, buffers, dims, kept)
    rank = mesh.get_local_rank()
    splits = [_split(buffer.size(dim), mesh) for buffer, dim in zip(buffers, dims, strict=True)]
    _check_told_apart(splits, mesh.size())
    before = [buffer.data for buffer in buffers]
    parts = [split.part(values, dim, rank) for values, split, dim in zip(before, splits, dims, strict=True)]
    try:
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.data = part
        with SequenceAttention(mesh, splits, is_balanced=options.enable_load_balance):
            yield
    finally:
        for buffer, values in zip(buffers, before, strict=True):
            if not any(buffer is each for each in kept):
                buffer.data = values


@torch.no_grad()
def context_parallel_unshard(mesh: DeviceMesh, buffers: list[torch.Tensor], seq_dims: list[int]) -> list[torch.Tensor]:
    """Gathers whole tensors from the ranks' positions: plain tensors, equal on all ranks, with positions in order. Collective over the mesh."""
    mesh = mesh_or_current(mesh)
    check_buffers(mesh, buffers, seq_dims)
    if not buffers:
        return []
    own = [buffer.size(dim) for buffer, dim in zip(buffers, seq_dims, strict=True)]
    lengths = on_all_ranks(own, mesh).sum(0).tolist()
    return [
        _split(length, mesh).whole(buffer.detach(), dim, mesh)
        for buffer, dim, length in zip(buffers, seq_dims, lengths, strict=True)
    ]


def set_rotate_method(rotate_method: str) -> None:
    """Accepts torch's names of ways to exchange keys and values; both have the same effect here. Raises NotImplementedError for other names."""
    if rotate_method not in ROTATE_METHODS:
        raise NotImplementedError(f"[context_parallel] rotate method {rotate_method!r} is none of {ROTATE_METHODS}.")
    options.rotate_method = rotate_method


def _split(length: int, mesh: DeviceMesh) -> SequenceSplit:
    return SequenceSplit(length, mesh.size(), options.enable_load_balance)


def check_buffers(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: Collection[torch.Tensor] = ()
) -> None:
    """Raises ValueError if buffers and dims do not fit each other, or `kept` has other tensors than `buffers`."""
    if mesh.ndim != 1:
        raise ValueError(
            f"[context_parallel] the mesh {mesh} has {mesh.ndim} dims. Pass the one to shard sequences over."
        )
    if len(buffers) != len(dims):
        raise ValueError(
            f"[context_parallel] `seq_dims` must have the same number of elements as `buffers`: there are {len(dims)} and "
            f"{len(buffers)}."
        )
    if any(not any(each is buffer for buffer in buffers) for each in kept):
        raise ValueError(
            "[context_parallel] `no_restore_buffers` must be a subset of `buffers`. Name tensors of that list."
        )
    for buffer, dim in zip(buffers, dims, strict=True):
        if not isinstance(buffer, torch.Tensor) or isinstance(buffer, DTensor):
            raise ValueError(
                f"[context_parallel] buffers are plain tensors, and one is a {type(buffer).__name__}. Give its local part."
            )
        if not -buffer.dim() <= dim < buffer.dim():
            raise ValueError(
                f"[context_parallel] a buffer of shape {list(buffer.shape)} has no dim {dim}. Name the dim of its positions."
            )


def _check_told_apart(splits: list[SequenceSplit], n_ranks: int) -> None:
    """Raises ValueError if a rank has equally many positions of sequences of different lengths: attention tells them apart by that number."""
    lengths = sorted({split.length for split in splits})
    by_length = {split.length: split for split in splits}
    for rank in range(n_ranks):
        own = [by_length[length].local_length(rank) for length in lengths]
        if len(set(own)) < len(own):
            raise ValueError(
                f"[context_parallel] sequences of {lengths} positions would have parts of {own} positions on rank {rank}, but attention "
                "tells sequences apart by the lengths of their parts. Pad one of them."
            )
