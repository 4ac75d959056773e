"""SequenceSplit: the positions of a sequence that each rank has."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch

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
