"""The positions of a sequence that each rank has, and attention of this rank's queries to all ranks' keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from shardwise import _C
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.placement_types import Partial, Replicate, Shard

Run = tuple[int, int]  # positions from the first to before the second


@dataclass(frozen=True)
class SequenceSplit:
    """`length` positions over `n_ranks`, in runs as torch.chunk splits them. If it is balanced, there are twice as many runs, and each rank has one
    from the head and its mirror from the tail: causal attention is then equal work for all ranks."""

    length: int
    n_ranks: int
    is_balanced: bool

    def runs(self, rank: int) -> list[Run]:
        """The runs of a rank, in the order in which it holds them."""
        return [self._bounds[rank], self._bounds[-1 - rank]] if self.is_balanced else [self._bounds[rank]]

    def local_length(self, rank: int) -> int:
        return sum(end - begin for begin, end in self.runs(rank))

    def part(self, tensor: torch.Tensor, dim: int, rank: int) -> torch.Tensor:
        """The part of a whole tensor that `rank` has."""
        return torch.cat([tensor.narrow(dim, begin, end - begin) for begin, end in self.runs(rank)], dim)

    def whole(self, part: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
        """The whole tensor, gathered from all ranks' parts. Differentiable: the gradients of a part are summed over the ranks."""
        dim %= part.dim()
        lengths = [self.local_length(rank) for rank in range(self.n_ranks)]
        shape = (*part.shape[:dim], self.length, *part.shape[dim + 1 :])
        parts = DTensor.from_local(part, mesh, [Shard(dim, lengths)], shape=shape)
        gathered = parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        if not self.is_balanced:
            return gathered
        runs = [run for rank in range(self.n_ranks) for run in self.runs(rank)]
        offsets = accumulate((end - begin for begin, end in runs), initial=0)
        in_order = sorted(zip(runs, offsets, strict=False))
        return torch.cat([gathered.narrow(dim, offset, end - begin) for (begin, end), offset in in_order], dim)

    @cached_property
    def _bounds(self) -> Sequence[Run]:
        n, n_runs = self.length, self.n_ranks * (2 if self.is_balanced else 1)
        if self.is_balanced:
            lengths = [n // n_runs + (run < n % n_runs) for run in range(n_runs)]
        else:
            lengths = [Shard.local_shard_size_and_offset(n, n_runs, run)[0] for run in range(n_runs)]
        return list(pairwise(accumulate(lengths, initial=0)))


class SequenceAttention:
    """A `with` block in which scaled_dot_product_attention takes plain tensors for parts of sequences sharded over `mesh`, also when torch's
    functions call it, and in the backward of calls in the block.

    `splits`: the splits of the known sequences. A sequence of another length has an equal part on every rank.
    """

    def __init__(self, mesh: DeviceMesh, splits: list[SequenceSplit], *, is_balanced: bool) -> None:
        self._mesh, self._is_balanced = mesh, is_balanced
        self._rank, self._n_ranks = mesh.get_local_rank(), mesh.size()
        self._splits = {split.local_length(self._rank): split for split in splits}
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(_C.exchange_attention(self._attention))

    def __exit__(self, *error: object) -> None:
        _C.exchange_attention(self._before.pop())

    def split_of(self, local_length: int) -> SequenceSplit:
        """The split of the sequence of which this rank has `local_length` positions."""
        known = self._splits.get(local_length)
        return known or SequenceSplit(local_length * self._n_ranks, self._n_ranks, self._is_balanced)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        for tensor in (query, key, value):
            if isinstance(tensor, DTensor):
                raise ValueError(
                    f"[context_parallel] attention got a DTensor placed as {list(tensor.placements)}, but works on plain parts of sequences "
                    "here. Pass its to_local()."
                )
        queries, keys = self.split_of(query.size(-2)), self.split_of(key.size(-2))
        all_keys, all_values = keys.whole(key, -2, self._mesh), keys.whole(value, -2, self._mesh)
        options["dropout_p"] = dropout_p
        if not is_causal:
            mask = None if attn_mask is None else self._rows_of(attn_mask, queries, keys)
            return _attend(query, all_keys, all_values, mask, **options)
        if attn_mask is not None:
            raise ValueError("[context_parallel] attention got is_causal=True and an attn_mask. Give one of them.")
        results, done = [], 0
        for begin, end in queries.runs(self._rank):
            part = query.narrow(-2, done, end - begin)
            seen = min(end, keys.length)
            mask = _causal_mask(part, begin, seen)
            results.append(_attend(part, all_keys.narrow(-2, 0, seen), all_values.narrow(-2, 0, seen), mask, **options))
            done += end - begin
        return torch.cat(results, -2)

    def _rows_of(self, mask: torch.Tensor, queries: SequenceSplit, keys: SequenceSplit) -> torch.Tensor:
        """The rows of a mask for this rank's queries, from a mask for all queries or for these. Raises ValueError for other sizes."""
        n_own = queries.local_length(self._rank)
        if mask.dim() < 2 or mask.size(-1) not in (1, keys.length) or mask.size(-2) not in (1, n_own, queries.length):
            raise ValueError(
                f"[context_parallel] an attn_mask of shape {list(mask.shape)} does not fit {queries.length} queries, {n_own} of them "
                f"here, and {keys.length} keys. Give all keys' columns, and the rows of all queries or of this rank's."
            )
        return queries.part(mask, -2, self._rank) if mask.size(-2) == queries.length != 1 else mask


def _causal_mask(queries: torch.Tensor, begin: int, n_keys: int) -> Any:
    """The mask by which query i, at position begin + i, sees the keys up to that position; the first `n_keys` keys are given."""
    n_queries = queries.size(-2)
    if begin + n_queries == n_keys and n_queries:
        from torch.nn.attention.bias import causal_lower_right  # imports torch._dynamo, which takes a second

        return causal_lower_right(n_queries, n_keys)  # torch's kernels recognise it
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=queries.device).tril(begin)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    if queries.size(-2):
        return scaled_dot_product_attention(queries, keys, values, mask, **options)
    # This rank has no query, but others wait for it in the backward, so the result must depend on keys and values.
    nothing = queries.sum() + keys[..., :0, :].sum() + values[..., :0, :].sum()
    return queries.new_zeros((*queries.shape[:-1], values.size(-1))) + nothing
