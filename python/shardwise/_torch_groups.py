"""What shardwise._C asks of torch.distributed: groups, made here and known to C++ by their names."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from shardwise import _C
from shardwise._torch_versions import NAMES_COUNT_CALLS

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Of the groups made here: those that C++ asked for, this rank's own, and those that their members made without the other ranks.
DESCRIPTION, LONE, BY_MEMBERS = "shardwise", "shardwise, one rank", "shardwise, by its members"

FIRST_OF_MEMBERS = 1 << 40  # more groups than a program makes

GroupsByRanks = Mapping[tuple[int, ...], ProcessGroup]


on_world: Callable[[], None] | None = None  # called where this process is a rank; set by the live page


def default_group() -> ProcessGroup | None:
    """The group of all processes, initialised where torchrun's variables are there; None where they are not."""
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if not all(name in os.environ for name in TORCHRUN_VARIABLES):
            return None
        dist.init_process_group()
    if on_world is not None:
        on_world()
    return dist.group.WORLD


def is_alone() -> bool:
    """True in a process that is no rank: no thread of run_ranks(), and without a group of torch.distributed or torchrun's variables."""
    return not _C.is_thread_rank() and default_group() is None


def timeout_of(group: ProcessGroup) -> timedelta | None:
    """How long the collectives of `group` wait; None where its backend does not say."""
    options = getattr(group._get_backend(group._device_types[0]), "options", None)
    return getattr(options, "_timeout", None)


def given_groups(groups: GroupsByRanks) -> AbstractContextManager[None]:
    """A `with` block in which meshes are made over these groups, for their ranks (ascending), unless theirs they are anyway."""
    return _C.given_groups({ranks: group.group_name for ranks, group in groups.items() if not is_known(group)})


def new_group(ranks: list[int]) -> str | None:
    """The name of a new group of `ranks`, None on the others. Collective over the world; the time-out is inherited."""
    group = new_group_like(ranks, description=DESCRIPTION)
    return None if group is None or group == dist.GroupMember.NON_GROUP_MEMBER else group.group_name


def is_known(group: ProcessGroup) -> bool:
    """True where C++ communicates over it among its ranks, or has nothing to send."""
    return group == dist.group.WORLD or group.group_desc in (DESCRIPTION, LONE)


def new_group_like(
    ranks: list[int], backend: str | None = None, options: Any = None, description: str | None = None
) -> Any:
    """A new group of `ranks`, of the world's backend and time-out unless others are given. Collective over the world."""
    everyone = dist.group.WORLD
    assert everyone is not None
    timeout = getattr(options, "_timeout", None) or timeout_of(everyone)
    if NAMES_COUNT_CALLS:  # ranks that have made groups without the others are ahead
        counts: list[Any] = [None] * everyone.size()
        dist.all_gather_object(counts, c10d._world.group_count)
        c10d._world.group_count = max(counts)
    return dist.new_group(ranks, timeout=timeout, backend=backend, pg_options=options, group_desc=description)


def lone_group(*, is_collective: bool = False) -> ProcessGroup | None:
    """The group of this rank alone, made when first asked for in this world; None where torch.distributed has none.

    `is_collective`: all ranks ask, as those do that make a mesh with a dim of one rank. Some backends make groups only then. Raises
    ValueError where theirs was not made so.
    """
    world = dist.group.WORLD
    if world is None or world.size() == 1:
        return world
    own = [dist.get_rank()]
    made = _made(own, LONE)
    if made is not None:
        return made
    try:
        return _new_group_of_members(own, LONE)
    except _MembersMakeNone as error:
        if not is_collective:
            raise ValueError(
                f"[device_mesh] the group of rank {own[0]} alone is not there, and it cannot make it alone: {error}. Make a mesh with a "
                "dim of one rank on all ranks of the world first."
            ) from None
    for rank in range(world.size()):
        new_group_like([rank], description=LONE)
    return _made(own, LONE)


def group_by_members(ranks: tuple[int, ...], parts: Sequence[ProcessGroup]) -> ProcessGroup:
    """The group of `ranks` (ascending), made by them alone unless there is one. `parts`: groups by which each rank reaches all others,
    after one another.

    Raises ValueError on all of them where torch.distributed would give it other names on other ranks, and where their backend makes
    groups only on all ranks of the world.
    """
    known = _made(list(ranks), DESCRIPTION) or _made(list(ranks), BY_MEMBERS)
    if known is not None:
        return known
    fewest = most = c10d._world.group_count if NAMES_COUNT_CALLS else len(c10d._world.pg_names)  # a part of the name
    for part in parts:
        if part.size() == 1:
            continue
        counts: list[Any] = [None] * part.size()
        dist.all_gather_object(counts, (fewest, most), group=part)
        fewest, most = min(low for low, _ in counts), max(high for _, high in counts)
    if fewest < most and not NAMES_COUNT_CALLS:
        raise ValueError(
            f"[device_mesh] the ranks {list(ranks)} are to make a group without the other ranks of the world, and some of them are in "
            f"{fewest} groups, others in {most}: torch.distributed names it by their number. Make DeviceMesh(device_type, "
            f"{list(ranks)}) on all ranks of the world first."
        )
    try:
        return _new_group_of_members(list(ranks), BY_MEMBERS, timeout_of(parts[0]), number=most)
    except _MembersMakeNone as error:
        raise ValueError(
            f"[device_mesh] the ranks {list(ranks)} are to make a group without the other ranks of the world, which their backend "
            f"refuses: {error}. Make DeviceMesh(device_type, {list(ranks)}) on all ranks of the world first."
        ) from None


class _MembersMakeNone(Exception):
    """The backend makes groups only on all ranks of the world: MPI, and those of torchcomms."""


def _new_group_of_members(
    ranks: list[int], description: str, timeout: timedelta | None = None, number: int = 0
) -> ProcessGroup:
    """Made by `ranks` alone, which have the same `number`: torch may count the group's name by it, and no other group by this one.

    Raises _MembersMakeNone, before any message, where the backend has all ranks of the world make it.
    """
    count = c10d._world.group_count
    c10d._world.group_count = FIRST_OF_MEMBERS + number
    try:
        return dist.new_group(ranks, timeout=timeout, use_local_synchronization=True, group_desc=description)
    except (NotImplementedError, ValueError) as error:
        if "use_local_synchronization" not in str(error):
            raise
        raise _MembersMakeNone(error) from None
    finally:
        c10d._world.group_count = count


def _made(ranks: list[int], description: str) -> ProcessGroup | None:
    """The group of `ranks` that was made here under this description."""
    for group in c10d._world.pg_names:
        if group.group_desc == description and dist.get_process_group_ranks(group) == ranks:
            return group
    return None


def group_of(name: str) -> ProcessGroup:
    """The group called `name`. Raises ValueError for ranks that are threads, whose groups have none: torch knows nothing of them."""
    if not name:
        raise ValueError(
            "[device_mesh] get_group() has none to give: ranks are threads here, outside torch.distributed."
        )
    return c10d._resolve_process_group(c10d.GroupName(name))  # type: ignore[attr-defined]
