"""Process groups of torch.distributed: those that C++ asks for and knows by name, and those that a mesh is given to communicate over."""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from shardwise import _C
from shardwise._torch_versions import uses_torchcomms

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Descriptions of the groups made here: C++ asked for the first kind, the second is of this rank alone, and the third was made by its members alone.
DESCRIPTION, LONE, BY_MEMBERS = "shardwise", "shardwise, one rank", "shardwise, by its members"

GroupsByRanks = Mapping[tuple[int, ...], ProcessGroup]
BackendOverride = Any  # a backend, its options, or both, for the groups along a mesh dim

on_world: Callable[[], None] | None = None  # called where this process is a rank; set by the live page


def default_group() -> ProcessGroup | None:
    """The group of all processes, initialised if torchrun's variables are set; None if they are not."""
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
    """The timeout of the collectives of `group`; None if its backend has none."""
    options = getattr(group._get_backend(group._device_types[0]), "options", None)
    return getattr(options, "_timeout", None)


def over_groups(groups: GroupsByRanks | None) -> AbstractContextManager[None]:
    """A `with` block in which meshes communicate over these groups among their ranks (ascending). None: over the groups that all ranks make."""
    if groups is None:
        return nullcontext()
    return _C.given_groups({ranks: group.group_name for ranks, group in groups.items() if not is_known(group)})


def new_group(ranks: list[int]) -> str | None:
    """Makes a group of `ranks` and returns its name; None on other ranks. Collective over the world, whose timeout the group gets, or over the ranks
    alone if members_make_groups()."""
    group = new_group_like(ranks, description=DESCRIPTION)
    return None if group is None or group == dist.GroupMember.NON_GROUP_MEMBER else group.group_name


def is_known(group: ProcessGroup) -> bool:
    """True if C++ already communicates over this group among its ranks, or if the group has one rank and so nothing to send."""
    return group == dist.group.WORLD or group.group_desc in (DESCRIPTION, LONE)


def new_group_like(
    ranks: list[int],
    backend: str | None = None,
    options: Any = None,
    description: str = "shardwise, of one mesh",
    timeout: timedelta | None = None,
) -> Any:
    """A new group of `ranks`; GroupMember.NON_GROUP_MEMBER on other ranks. Backend and timeout are the world's unless given.

    The name consists of the members, the description and the number of such groups made before. torch.distributed.new_group() counts all groups
    instead. Its names would differ between ranks if threads make groups in different orders, or if members make a group without the other ranks.
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
    """`store`, or a copy of it if another thread is making a group. A connection serves one call at a time, so a call that waits for other ranks
    would keep this rank from sending them its own keys."""
    with _counting:
        _makers.append(store)
        is_shared = len(_makers) > 1
    try:
        yield store.clone() if is_shared else store  # type: ignore[attr-defined]
    finally:
        with _counting:
            _makers.pop()


# The number of groups made in a world, by description and members.
_counts: WeakKeyDictionary[ProcessGroup, Counter[str]] = WeakKeyDictionary()
_counting = threading.Lock()
_makers: list[Store] = []  # one for each thread that is making a group
_making_alone = threading.Lock()  # held while this rank makes its lone group, which waits for no other rank


def lone_group(*, is_collective: bool = False) -> ProcessGroup | None:
    """The group of this rank alone, made at the first call in this world; None without torch.distributed.

    `is_collective`: all ranks make this call, as when they make a mesh with a dim of one rank. Some backends make groups only then: for them
    a call without it raises ValueError if the group does not exist yet.
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


def group_by_members(ranks: list[int], like: str) -> str:
    """The name of the group of `ranks` (ascending) that these ranks made without the others. They make it now if there is none, with the timeout of
    the group called `like`. Raises ValueError on all of them if their backend makes groups only on all ranks of the world."""
    known = _made(ranks, BY_MEMBERS)
    if known is not None:
        return known.group_name
    if all_ranks_make_groups():
        raise ValueError(
            f"[device_mesh] the ranks {ranks} cannot make a group without the other ranks of the world: their backend needs all ranks "
            f"to make a group. Make DeviceMesh(device_type, {ranks}) on all ranks of the world first."
        )
    timeout = timeout_of(group_of(like)) if like else None
    name: str = new_group_like(ranks, description=BY_MEMBERS, timeout=timeout).group_name
    return name


def all_ranks_make_groups() -> bool:
    """Whether every rank of the world must take part in making a group: MPI and torchcomms require it."""
    return dist.Backend.MPI in str(c10d._world.pg_map[c10d._get_default_group()][0]) or uses_torchcomms()


def members_make_groups() -> bool:
    """Whether the ranks of a group make it without the others. A world that is bound to a device splits its communicator, on all ranks."""
    return not all_ranks_make_groups() and c10d._get_default_group().bound_device_id is None


def _made(ranks: list[int], description: str) -> ProcessGroup | None:
    """The group of `ranks` that was made here under this description."""
    for group in list(c10d._world.pg_names):  # a copy: other threads may make groups meanwhile
        if group.group_desc == description and dist.get_process_group_ranks(group) == ranks:
            return group
    return None


def group_of(name: str) -> ProcessGroup:
    """The group called `name`. Raises ValueError if ranks are threads: their groups are not torch's and have no names."""
    if not name:
        raise ValueError(
            "[device_mesh] get_group() has no group to return: ranks are threads here, outside torch.distributed. Start them with torchrun."
        )
    return c10d._resolve_process_group(c10d.GroupName(name))  # type: ignore[attr-defined]


def ranks_of(name: str) -> list[int]:
    """The global ranks of the group called `name`."""
    return dist.get_process_group_ranks(group_of(name))


def given_groups_of(groups: Sequence[ProcessGroup], mesh: torch.Tensor) -> GroupsByRanks | None:
    """The groups, one along each dim of `mesh`, by their ranks; None if these and the group of all ranks are those that all ranks make. Raises
    ValueError if they do not fit."""
    if not groups or mesh.dim() != len(groups):
        raise ValueError(
            f"[device_mesh] Invalid mesh {mesh.tolist()} for ProcessGroup with ranks "
            f"{', '.join(str(dist.get_process_group_ranks(each)) for each in groups)}: got {len(groups)} ProcessGroups for a mesh of "
            f"{mesh.dim()} dims. Give one per dim."
        )
    for dim, each in enumerate(groups):
        members = dist.get_process_group_ranks(each)
        if members != sorted(members):
            raise ValueError(
                f"[device_mesh] the group given for dim {dim} has the ranks {members}, which do not ascend. Make it with "
                "sort_ranks=True; the mesh may have them in any order."
            )
        if members not in [sorted(line) for line in lines(mesh, dim)]:
            raise ValueError(
                f"[device_mesh] Invalid mesh {mesh.tolist()} for ProcessGroup with ranks {members}, given for dim {dim}: these are not "
                "the ranks along that dim. Give the group along each dim."
            )
    is_one_known = mesh.dim() == 1 or mesh.numel() == dist.get_world_size() or members_make_groups()
    if all(map(is_known, groups)) and (is_one_known or _made(sorted(mesh.flatten().tolist()), DESCRIPTION)):
        return None
    return {tuple(dist.get_process_group_ranks(each)): each for each in groups}


def lines(ranks: torch.Tensor, dim: int) -> Iterator[list[int]]:
    """The ranks along `dim`, for each coordinate in the other dims."""
    yield from ranks.movedim(dim, -1).reshape(-1, ranks.size(dim)).tolist()


def overrides_by_dim(
    overrides: Mapping[int | str, BackendOverride], names: Sequence[str], n_dims: int | None = None
) -> list[BackendOverride | None]:
    """The override of each dim. Raises RuntimeError for a dim that does not exist or is given twice."""
    n_dims, names = len(names) if n_dims is None else n_dims, list(names)
    by_dim = {names.index(key) if key in names else key: value for key, value in overrides.items()}
    unknown = [key for key in by_dim if key not in range(n_dims)]
    if unknown or len(by_dim) < len(overrides):
        raise RuntimeError(
            f"[device_mesh] backend_override has keys {list(overrides)}: expected each of the {n_dims} dims at most once, by number or by its "
            f"name in {names}."
        )
    return [by_dim.get(dim) for dim in range(n_dims)]


def overridden_groups(
    mesh: torch.Tensor | Sequence[object], overrides: Sequence[BackendOverride | None]
) -> GroupsByRanks | None:
    """This rank's groups along each dim of several ranks that has an override; None if there is no such dim. The group of one rank sends nothing over
    any backend. Collective over the world."""
    ranks = torch.as_tensor(mesh, device="cpu")
    groups: dict[tuple[int, ...], ProcessGroup] | None = None
    for dim, override in enumerate(overrides):
        backend, options = override if isinstance(override, tuple) else (override, None)
        if backend is not None and not isinstance(backend, str):
            backend, options = None, backend
        if ranks.size(dim) == 1 or (backend is None and options is None):
            continue
        groups = groups or {}
        for line in lines(ranks, dim):
            group = new_group_like(line, backend, options)
            if dist.get_rank() in line:
                groups[tuple(sorted(line))] = group
    return groups
