"""Objects that the program sends from one rank to another. The sender runs too, in a process of its own, and its objects arrive."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from shardwise import _C


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
