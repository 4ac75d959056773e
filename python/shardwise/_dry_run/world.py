"""The process group of a dry run: one rank of a job whose other ranks do not exist."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from shardwise import _C
from shardwise._dry_run.figures import bytes_over_time
from shardwise._dry_run.letters import Letters, changes_of_letters
from shardwise._torch_groups import is_rank

OBJECT_COLLECTIVES = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
VERIFY_PARAMETERS = torch._C._distributed_c10d._verify_params_across_processes
BACKEND = "fake"  # torch's: its operations return at once and deliver nothing


class MemoryTold:
    """Answers to torch.cuda.memory_allocated() and max_memory_allocated(), by the lifetimes that the dry run has counted so far."""

    def __init__(self, lifetimes: Callable[[], Iterable[tuple[Any, ...]]]) -> None:
        self._lifetimes = lifetimes
        self._begin = 0  # the time of the last reset

    def in_use(self, *device: Any) -> int:
        return [0, *bytes_over_time(self._lifetimes())][-1]

    def peak(self, *device: Any) -> int:
        return max([0, *bytes_over_time(self._lifetimes())][self._begin :])

    def reset_peak(self, *device: Any) -> None:
        self._begin = len(bytes_over_time(self._lifetimes()))

    def statistics(self, *device: Any) -> dict[str, int]:
        numbers = {"current": self.in_use(), "peak": self.peak()}
        return {f"{kind}_bytes.all.{name}": n for kind in ("allocated", "reserved") for name, n in numbers.items()}


@contextmanager
def fake_world(
    ranks: int, rank: int, ranks_per_host: int, device_type: str, letters: Letters, memory: MemoryTold
) -> Iterator[None]:
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
    initialise, new_group, make_group = c10d.init_process_group, c10d.new_group, c10d._new_process_group_helper

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            initialise(BACKEND, rank=rank, world_size=ranks, store=FakeStore())

    def new_fake_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new_group(ranks, timeout, None, *args, **kwargs)

    def make_fake_group(*args: Any, **kwargs: Any) -> Any:
        made = make_group(*args, **kwargs)
        take_meta(made[0])
        return made

    with ExitStack() as changes:
        changes.enter_context(mock.patch.object(sys, "excepthook", sys.excepthook))  # torch's has the rank in each line
        changes.enter_context(mock.patch.dict(os.environ, {name: str(value) for name, value in variables.items()}))
        fake = dist.Backend._BackendPlugin(lambda at, options: _C.fake_group(at.group_rank, at.group_size), True)
        changes.enter_context(mock.patch.dict(dist.Backend._plugins, {BACKEND.upper(): fake}))
        for module in (c10d, dist):
            changes.enter_context(mock.patch.object(module, "init_process_group", init_process_group))
            changes.enter_context(mock.patch.object(module, "new_group", new_fake_group))
        changes.enter_context(mock.patch.object(c10d, make_group.__name__, make_fake_group))
        for name in OBJECT_COLLECTIVES:
            function = with_values(getattr(c10d, name))
            for module in (c10d, dist):
                changes.enter_context(mock.patch.object(module, name, function))
        for change in changes_of_letters(letters, with_values):
            changes.enter_context(change)
        changes.enter_context(mock.patch.object(dist, VERIFY_PARAMETERS.__name__, verify_parameters))
        cuda = cuda_stand_ins(rank % ranks_per_host, ranks_per_host, device_type == "cuda", memory)
        for (name, function), module in product(cuda.items(), (torch.cuda, torch.cuda.memory)):
            if hasattr(module, name):
                changes.enter_context(mock.patch.object(module, name, function))
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


def with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of torch's functions that exchange what is no tensor of the program, on tensors with values. Every other rank counts as having this rank's
    objects, so this rank is the source.
    """
    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        group, objects = given.get("group"), "scatter_object_input_list"
        if objects in signature.parameters:
            given[objects] = given.get(objects) or [None] * dist.get_world_size(group)
        if "group_src" in signature.parameters:
            given |= {"src": None, "group_src": dist.get_rank(group)}
        with torch._C.DisableTorchFunction():
            return function(**given)

    return call


def verify_parameters(group: Any, parameters: Sequence[torch.Tensor], logger: Any = None) -> None:
    with torch._C.DisableTorchFunction():
        known = [torch.zeros(()).expand(each.shape) for each in parameters]
    VERIFY_PARAMETERS(group, known, logger)


def cuda_stand_ins(device: int, devices: int, is_there: bool, memory: MemoryTold) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of torch.cuda, on a host with or without GPUs."""

    def giving(result: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: result  # one each: torch.compile lists the functions of torch

    names = ["set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"]
    names += ["set_rng_state", "set_rng_state_all"]
    state = torch.zeros(16, dtype=torch.uint8)  # as large as a GPU's
    found = {name: giving(None) for name in (*names, "init")}
    found |= {f"memory_{kind}": lambda *device: memory.in_use() for kind in ("allocated", "reserved")}
    found |= {f"max_memory_{kind}": lambda *device: memory.peak() for kind in ("allocated", "reserved")}
    found |= {"reset_peak_memory_stats": memory.reset_peak, "memory_stats": memory.statistics}
    answers = {"is_available": is_there, "is_bf16_supported": is_there, "get_device_capability": (9, 0)}
    answers |= {"current_device": device, "device_count": devices}
    answers |= {"get_rng_state": state, "get_rng_state_all": [state] * devices}
    return found | {name: giving(answer) for name, answer in answers.items()}
