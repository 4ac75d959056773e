"""The process group of a dry run: one rank of a job whose other ranks do not exist.

Objects that the program sends from one rank to another arrive if the sender runs too, in a process of its own. The reducer of torch's
DistributedDataParallel, which is C++ and reads results of messages, has a stand-in.
"""

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from shardwise import _C
from shardwise._dry_run.figures import bytes_over_time
from shardwise._torch_groups import is_rank


class Letters:
    """Sends and receives a rank's objects. `office`: the process that starts ranks, or None; it answers a wish with the objects, or with None."""

    def __init__(self, office: Connection | None = None) -> None:
        self._office = office

    def send(self, receiver: int, objects: bytes) -> None:
        if self._office is not None:
            self._office.send((receiver, objects))

    def receive(self, sender: int) -> bytes:
        found: bytes | None = None
        if self._office is not None:
            self._office.send(sender)
            found = self._office.recv()
        if found is None:
            raise ValueError(
                f"[dry_run] {_C.program_line()} receives objects of rank {sender}, which sends none. Objects of other ranks are known in "
                "`python -m shardwise dry-run`, which runs the sender too, and if it sends them. A pipeline's stage with input_args and "
                "output_args needs none."
            )
        return found


def changes_of_letters(letters: Letters, with_values: Callable[..., Any]) -> Iterator[AbstractContextManager[Any]]:
    """`with_values`: runs one of torch's functions on tensors that have values."""
    send = with_values(c10d.send_object_list)

    def global_rank(rank: Any, group: Any, group_rank: Any) -> int:
        everyone: Any = dist.group.WORLD
        return int(rank) if rank is not None else dist.get_global_rank(group or everyone, group_rank)

    def send_objects(
        object_list: list[Any],
        dst: Any = None,
        group: Any = None,
        device: Any = None,
        group_dst: Any = None,
        **options: Any,
    ) -> None:
        letters.send(global_rank(dst, group, group_dst), pickle.dumps(object_list))
        send(object_list, dst, group, None, group_dst, **options)

    def receive_objects(
        object_list: list[Any],
        src: Any = None,
        group: Any = None,
        device: Any = None,
        group_src: Any = None,
        **options: Any,
    ) -> int:
        sender = global_rank(src, group, group_src)
        object_list[:] = pickle.loads(letters.receive(sender))
        with torch._C.DisableTorchFunction():
            for n_bytes in (8 * len(object_list), sum(len(pickle.dumps(each)) for each in object_list)):
                dist.recv(torch.empty(n_bytes, dtype=torch.uint8), sender, group)
        return sender

    for module in (c10d, dist):
        yield mock.patch.object(module, "send_object_list", send_objects)
        yield mock.patch.object(module, "recv_object_list", receive_objects)


def changes_of_data_parallel() -> Iterator[AbstractContextManager[Any]]:
    """Each bucket of gradients is all-reduced, also if the program has a hook. Buckets stay as they are after the first step; messages about them count."""
    due: dict[int, list[tuple[Any, int]]] = {}  # by reducer: the groups and lengths of these messages
    initialise = DistributedDataParallel._ddp_init_helper

    def all_reduce(model: Any, bucket: _distributed_c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer(), group=model.process_group)
        if bucket.is_last():
            lengths = bucket.index() + 1, 1 + sum(each.requires_grad for each in model._module_parameters)
            due.setdefault(id(model.reducer), [(model.process_group, n) for n in lengths])
        result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        result.set_result(bucket.buffer())
        return result

    def with_hook(model: Any, *args: Any, **kwargs: Any) -> None:
        initialise(model, *args, **kwargs)
        _distributed_c10d._register_comm_hook(model.reducer, model, all_reduce)

    def rebuild(reducer: _distributed_c10d.Reducer) -> bool:
        while messages := due.get(id(reducer)):
            group, length = messages.pop()
            dist.broadcast(torch.empty(length, dtype=torch.int32, device="meta"), group=group, group_src=0)
        return False

    yield mock.patch.object(DistributedDataParallel, "_ddp_init_helper", with_hook)
    yield mock.patch.object(DistributedDataParallel, "register_comm_hook", lambda *args: None)
    yield mock.patch.object(_distributed_c10d.Reducer, "_rebuild_buckets", rebuild)


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
