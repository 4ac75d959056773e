"""torch's DistributedDataParallel in a dry run. Its reducer is C++, which reads results of messages."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel


def changes_of_data_parallel() -> Iterator[AbstractContextManager[Any]]:
    """Each bucket of gradients is all-reduced, also if the program has a hook. Buckets stay as they are after the first step; messages about them count."""
    due: dict[int, list[tuple[Any, int]]] = {}  # by reducer: the groups and lengths of these messages
    initialise = DistributedDataParallel._ddp_init_helper

    def all_reduce(model: Any, bucket: c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer(), group=model.process_group)
        if bucket.is_last():
            lengths = bucket.index() + 1, 1 + sum(each.requires_grad for each in model._module_parameters)
            due.setdefault(id(model.reducer), [(model.process_group, n) for n in lengths])
        result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        result.set_result(bucket.buffer())
        return result

    def with_hook(model: Any, *args: Any, **kwargs: Any) -> None:
        initialise(model, *args, **kwargs)
        c10d._register_comm_hook(model.reducer, model, all_reduce)

    def rebuild(reducer: c10d.Reducer) -> bool:
        while messages := due.get(id(reducer)):
            group, length = messages.pop()
            dist.broadcast(torch.empty(length, dtype=torch.int32, device="meta"), group=group, group_src=0)
        return False

    yield mock.patch.object(DistributedDataParallel, "_ddp_init_helper", with_hook)
    yield mock.patch.object(DistributedDataParallel, "register_comm_hook", lambda *args: None)
    yield mock.patch.object(c10d.Reducer, "_rebuild_buckets", rebuild)
