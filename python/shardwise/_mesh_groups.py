"""The process groups that a mesh is made over, where they are not the ones that all ranks of the world make."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from shardwise._torch_groups import GroupsByRanks, given_groups, group_by_members, new_group_like, timeout_of

# A backend, its options, or both: what a mesh dim's groups are made with, if not as the world's is.
BackendOverride = Any


def making(given: GroupsByRanks | None) -> AbstractContextManager[Any]:
    """A `with` block in which meshes are made over these groups, of all ranks' where there are None."""
    return nullcontext() if given is None else given_groups(given)


def with_everyone(lines: GroupsByRanks, ranks: torch.Tensor) -> GroupsByRanks:
    """`lines`, the groups of this rank along each dim of `ranks`, and that of all `ranks` where neither they nor the world are it."""
    everyone = tuple(sorted(ranks.flatten().tolist()))
    if everyone in lines or len(everyone) == dist.get_world_size():
        return lines
    return {**lines, everyone: group_by_members(everyone, timeout_of(next(iter(lines.values()))))}


def lines(ranks: torch.Tensor, dim: int) -> Iterator[list[int]]:
    """The ranks along `dim`, for each place in the other dims."""
    yield from ranks.movedim(dim, -1).reshape(-1, ranks.size(dim)).tolist()


def overridden_groups(
    mesh: torch.Tensor | Sequence[object], overrides: Sequence[BackendOverride | None]
) -> GroupsByRanks:
    """This rank's groups along each dim that has an override. Raises ValueError where there is not one per dim."""
    ranks = torch.as_tensor(mesh, device="cpu")
    if len(overrides) != ranks.dim():
        raise ValueError(
            f"[device_mesh] backend_override has {len(overrides)} entries for a mesh of {ranks.dim()} dims. Give one per dim, and None for "
            "a dim with the world's backend."
        )
    groups: dict[tuple[int, ...], ProcessGroup] = {}
    for dim, override in enumerate(overrides):
        backend, options = override if isinstance(override, tuple) else (override, None)
        if backend is not None and not isinstance(backend, str):
            backend, options = None, backend
        if backend is None and options is None:
            continue
        for line in lines(ranks, dim):
            group = new_group_like(line, backend, options)
            if dist.get_rank() in line:
                groups[tuple(sorted(line))] = group
    return groups
