"""How the tensors of one sample are laid out over the mesh: the schemes that the sweep goes through."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

import shardwise as sw

N_RANKS = 4


@dataclass(frozen=True)
class Scheme:
    """`place(tensor, index)`: the placement of the sample's tensor number `index` on a mesh of N_RANKS ranks."""

    name: str
    place: Callable[[torch.Tensor, int], sw.Placement]


def uneven_sizes(n: int) -> list[int]:
    """No two ranks alike, and rank 1 has nothing: 5 is 2, 0, 1, 2; 1 is 0, 0, 0, 1."""
    return [n // 2, 0, n // 4, n - n // 2 - n // 4]


def shard(tensor: torch.Tensor, dim: int, uneven: bool) -> sw.Placement:
    if dim >= tensor.dim():
        return sw.Replicate()
    return sw.Shard(dim, sizes=uneven_sizes(tensor.shape[dim])) if uneven else sw.Shard(dim)


def schemes(tensors: Sequence[torch.Tensor]) -> Iterator[Scheme]:
    """Replicas; each dim sharded by chunks and unevenly, of all tensors and of the first alone; the first one Partial."""
    yield Scheme("replicate", lambda tensor, index: sw.Replicate())
    for dim in range(max((tensor.dim() for tensor in tensors), default=0)):
        yield Scheme(f"chunk {dim}", lambda tensor, index, dim=dim: shard(tensor, dim, uneven=False))
        yield Scheme(f"uneven {dim}", lambda tensor, index, dim=dim: shard(tensor, dim, uneven=True))
    if not tensors:
        return
    if len(tensors) > 1:
        for dim in range(tensors[0].dim()):
            yield Scheme(
                f"first alone {dim}",
                lambda tensor, index, dim=dim: shard(tensor, dim, uneven=True) if index == 0 else sw.Replicate(),
            )
    if tensors[0].dtype.is_floating_point:
        yield Scheme("partial", lambda tensor, index: sw.Partial() if index == 0 else sw.Replicate())


def partial_term(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Terms whose sum is `tensor` bit by bit: eighths on rank 1, the rest on rank 2, what is not finite on rank 0."""
    finite = tensor.isfinite()
    eighths = torch.where(finite & (tensor.abs() < 1e4), (tensor * 8).round() / 8, torch.zeros_like(tensor))
    if rank == 0:
        return torch.where(finite, torch.zeros_like(tensor), tensor)
    if rank == 1:
        return eighths
    return torch.where(finite, tensor, torch.zeros_like(tensor)) - eighths if rank == 2 else torch.zeros_like(tensor)


def distribute(tensor: torch.Tensor, mesh: sw.DeviceMesh, placement: sw.Placement, rank: int) -> sw.DTensor:
    dense = tensor.detach().clone()
    if placement.is_partial():
        term = partial_term(dense, rank)
        result = sw.DTensor.from_local(
            term, mesh, [placement], run_check=False, shape=dense.shape, stride=dense.stride()
        )
    else:
        result = sw.distribute_tensor(dense, mesh, [placement], src_data_rank=None)
    return result.detach().requires_grad_(tensor.requires_grad)
