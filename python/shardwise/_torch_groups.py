"""What shardwise._C asks of torch.distributed: groups, made here and known to C++ by their names."""

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def default_group() -> ProcessGroup | None:
    """The group of all processes, initialised where torchrun's variables are there; None where they are not."""
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if not all(name in os.environ for name in TORCHRUN_VARIABLES):
            return None
        dist.init_process_group()
    return dist.group.WORLD


def timeout_of(group: ProcessGroup) -> timedelta | None:
    """How long the collectives of `group` wait; None where its backend does not say."""
    options = getattr(group._get_backend(group._device_types[0]), "options", None)
    return getattr(options, "_timeout", None)


def new_group(ranks: list[int]) -> str | None:
    """The name of a new group of `ranks`, None on the others. Collective over the world; the time-out is inherited."""
    everyone = dist.group.WORLD
    assert everyone is not None
    group = dist.new_group(ranks, timeout=timeout_of(everyone))
    return None if group is None or group == dist.GroupMember.NON_GROUP_MEMBER else group.group_name


def group_of(name: str | None) -> ProcessGroup | None:
    """The group called `name`; no name, no group. Raises ValueError for ranks that are threads: torch knows nothing of theirs."""
    if name is None:
        return None
    if not name:
        raise ValueError(
            "[device_mesh] get_group() has none to give: ranks are threads here, outside torch.distributed."
        )
    return c10d._resolve_process_group(c10d.GroupName(name))  # type: ignore[attr-defined]
