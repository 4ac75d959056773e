"""The process group of a dry run: one rank of a job whose other ranks do not exist."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from shardwise import _C
from shardwise._torch_groups import is_rank

BACKEND = "fake"  # torch's: its operations return at once and deliver nothing


@contextmanager
def fake_world(ranks: int, rank: int, ranks_per_host: int) -> Iterator[None]:
    """A `with` block in which this process is one rank of many, as under torchrun.

    The program may initialise torch.distributed, with any backend, or leave that to Shardwise. Calls of torch.cuda that a rank makes at its start do
    nothing.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    if is_rank():
        raise ValueError(
            "[dry_run] this process has ranks already. A dry run has a world of its own. Start it in a process without ranks."
        )
    variables = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank % ranks_per_host,
        "LOCAL_WORLD_SIZE": min(ranks, ranks_per_host),
        "GROUP_RANK": rank // ranks_per_host,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
    }
    initialise, new_group = c10d.init_process_group, c10d.new_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            initialise(BACKEND, rank=rank, world_size=ranks, store=FakeStore())
            take_meta(dist.group.WORLD)

    def new_fake_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        group = new_group(ranks, timeout, None, *args, **kwargs)
        take_meta(group)
        return group

    with ExitStack() as changes:
        changes.enter_context(mock.patch.dict(os.environ, {name: str(value) for name, value in variables.items()}))
        for module in (c10d, dist):
            changes.enter_context(mock.patch.object(module, "init_process_group", init_process_group))
            changes.enter_context(mock.patch.object(module, "new_group", new_fake_group))
        for name, function in object_collectives().items():
            for module in (c10d, dist):
                changes.enter_context(mock.patch.object(module, name, function))
        for name, function in cuda_stand_ins(rank % ranks_per_host, ranks_per_host).items():
            changes.enter_context(mock.patch.object(torch.cuda, name, function))
        init_process_group()
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            _C.forget_world()


def take_meta(group: Any) -> None:
    """Has the group take tensors on meta, too."""
    if isinstance(group, dist.ProcessGroup):
        fake = group._get_backend(torch.device("cpu"))
        group._register_backend(torch.device("meta"), dist.ProcessGroup.BackendType.CUSTOM, fake)


def object_collectives() -> dict[str, Callable[..., Any]]:
    """Stand-ins for collectives of Python objects: every other rank counts as having this rank's object. They count as collectives of a byte."""

    def count(group: Any) -> None:
        dist.broadcast(torch.empty(1, dtype=torch.uint8, device="meta"), group=group, group_src=0)

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        count(group)
        object_list[:] = [obj] * len(object_list)

    def gather_object(
        obj: Any, object_gather_list: list[Any] | None = None, dst: Any = None, group: Any = None, **kwargs: Any
    ) -> None:
        count(group)
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list: list[Any], src: Any = None, group: Any = None, **kwargs: Any) -> None:
        count(group)

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: Any = None,
        group: Any = None,
        **kwargs: Any,
    ) -> None:
        count(group)
        given = scatter_object_input_list
        scatter_object_output_list[0] = given[dist.get_rank(group)] if given else None

    functions = (all_gather_object, gather_object, broadcast_object_list, scatter_object_list)
    return {function.__name__: function for function in functions}


def cuda_stand_ins(device: int, devices: int) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of torch.cuda, on a host with or without GPUs."""

    def giving(result: int | None) -> Callable[..., int | None]:
        return lambda *args, **kwargs: result  # one each: torch.compile lists the functions of torch

    names = (
        "set_device",
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "manual_seed",
        "manual_seed_all",
        "init",
    )
    numbers = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    found = {name: giving(None) for name in names} | {name: giving(0) for name in numbers}
    return found | {"current_device": giving(device), "device_count": giving(devices)}
