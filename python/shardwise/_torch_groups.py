"""What shardwise._C asks of torch.distributed: groups, made here and known to C++ by their names."""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from shardwise import _C
from shardwise._torch_versions import uses_torchcomms

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Of the groups made here: those that C++ asked for, this rank's own, and those that their members made without the other ranks.
DESCRIPTION, LONE, BY_MEMBERS = "shardwise", "shardwise, one rank", "shardwise, by its members"

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


def is_rank() -> bool:
    """True if this thread is one of run_ranks(), or this process has a group of torch.distributed or a World of C++. It initialises none."""
    return _C.is_thread_rank() or (dist.is_available() and dist.is_initialized()) or _C.has_world_of_cpp()


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
    ranks: list[int],
    backend: str | None = None,
    options: Any = None,
    description: str = "shardwise, of one mesh",
    timeout: timedelta | None = None,
) -> Any:
    """A new group of `ranks`, of the world's backend and time-out unless others are given; GroupMember.NON_GROUP_MEMBER on the others.

    Its name is made of its members, its description and how many such groups there were before. torch.distributed.new_group() would count
    all groups: threads that make groups in another order than those of other ranks, or members that make one without the other ranks, would
    then have other names for one group.
    """
    everyone = dist.group.WORLD
    assert everyone is not None
    of_world, store = c10d._world.pg_map[everyone]
    backend = dist.Backend(backend or of_world)
    members = sorted(ranks)
    kind = f"{description}, {hashlib.sha1(str(members).encode(), usedforsecurity=False).hexdigest()}"
    with _counting:
        counts = _counts.setdefault(everyone, Counter())
        name = f"{kind}, {counts[kind]}"
        counts[kind] += 1
    with _own_store(store) as store:
        group, _ = c10d._new_process_group_helper(
            len(members),
            members.index(dist.get_rank()) if dist.get_rank() in members else None,
            members,
            backend,
            store,
            c10d.GroupName(name),
            backend_options=options,
            timeout=timeout
            or getattr(options, "_timeout", None)
            or timeout_of(everyone)
            or c10d._get_default_timeout(backend),
            device_id=everyone.bound_device_id,
            group_desc=description,
        )
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(members)}
    return group


@contextmanager
def _own_store(store: Store) -> Iterator[Store]:
    """`store`, of which a thread has a copy where another one is making a group: a connection serves one call at a time, and one that waits
    for other ranks' words would keep this rank from saying its own."""
    with _counting:
        _makers.append(store)
        is_shared = len(_makers) > 1
    try:
        yield store.clone() if is_shared else store  # type: ignore[attr-defined]
    finally:
        with _counting:
            _makers.pop()


# How many groups of each kind and members were made in a world.
_counts: WeakKeyDictionary[ProcessGroup, Counter[str]] = WeakKeyDictionary()
_counting = threading.Lock()
_makers: list[Store] = []  # one for each thread that is making a group
_making_alone = threading.Lock()  # of one thread: nobody else is waited for


def lone_group(*, is_collective: bool = False) -> ProcessGroup | None:
    """The group of this rank alone, made when first asked for in this world; None where torch.distributed has none.

    `is_collective`: all ranks ask, as those do that make a mesh with a dim of one rank. Some backends make groups only then. Raises
    ValueError where theirs was not made so.
    """
    world = dist.group.WORLD
    if world is None or world.size() == 1:
        return world
    own = dist.get_rank()
    with _making_alone:
        made = _made([own], LONE)
        if made is not None:
            return made
        if not all_ranks_make_groups():
            group: ProcessGroup = new_group_like([own], description=LONE)
            return group
    if not is_collective:
        raise ValueError(
            f"[device_mesh] the group of rank {own} alone does not exist, and the rank cannot make it by itself: its backend needs all "
            "ranks of the world to make a group. Make a mesh with a dim of one rank on all ranks of the world first."
        )
    for rank in range(world.size()):
        new_group_like([rank], description=LONE)
    return _made([own], LONE)


def group_by_members(ranks: tuple[int, ...], timeout: timedelta | None) -> ProcessGroup:
    """The group of `ranks` (ascending), made by them alone unless there is one. Raises ValueError on all of them where their backend makes
    groups only on all ranks of the world."""
    known = _made(list(ranks), DESCRIPTION) or _made(list(ranks), BY_MEMBERS)
    if known is not None:
        return known
    if all_ranks_make_groups():
        raise ValueError(
            f"[device_mesh] the ranks {list(ranks)} cannot make a group without the other ranks of the world: their backend needs all ranks "
            f"to make a group. Make DeviceMesh(device_type, {list(ranks)}) on all ranks of the world first."
        )
    group: ProcessGroup = new_group_like(list(ranks), description=BY_MEMBERS, timeout=timeout)
    return group


def all_ranks_make_groups() -> bool:
    """Whether the world's backend refuses groups that their members make alone: MPI's does, and those of torchcomms."""
    return dist.Backend.MPI in str(c10d._world.pg_map[c10d._get_default_group()][0]) or uses_torchcomms()


def _made(ranks: list[int], description: str) -> ProcessGroup | None:
    """The group of `ranks` that was made here under this description."""
    for group in list(c10d._world.pg_names):  # other threads may make some meanwhile
        if group.group_desc == description and dist.get_process_group_ranks(group) == ranks:
            return group
    return None


def group_of(name: str) -> ProcessGroup:
    """The group called `name`. Raises ValueError for ranks that are threads, whose groups have none: torch knows nothing of them."""
    if not name:
        raise ValueError(
            "[device_mesh] get_group() has no group to return: ranks are threads here, outside torch.distributed. Start them with torchrun."
        )
    return c10d._resolve_process_group(c10d.GroupName(name))  # type: ignore[attr-defined]
