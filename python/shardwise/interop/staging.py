"""Copies of our tensors for checkpoints that are written while training goes on (torch.distributed.checkpoint.async_save)."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from shardwise import _C
from shardwise.dtensor import DTensor
from shardwise.interop import state_dicts
from shardwise.local_shards_wrapper import LocalShardsWrapper


def teach(module: ModuleType) -> None:
    """Lets the stagers of torch.distributed.checkpoint copy our tensors piece by piece, and threads save while others train."""
    state_dicts.teach(module)
    for name, method, replacement in [
        ("StateDictStager", "_offload_tensor", _offload_tensor),
        ("_ThreadBasedAsyncCheckpointExecutor", "execute_save", _execute_save),
    ]:
        owner = getattr(module, name, None)
        if owner is not None and owner.__module__ == module.__name__:
            setattr(owner, method, replacement(getattr(owner, method)))


def _offload_tensor(original: Any) -> Any:
    @functools.wraps(original)
    def offload_tensor(self: Any, x: torch.Tensor, memo: dict[int, Any], non_blocking: bool = False) -> torch.Tensor:
        if not isinstance(x, DTensor):
            return original(self, x, memo, non_blocking=non_blocking)
        pieces = _C.detached_pieces(x, "checkpoint")
        copies = []
        for piece in pieces:
            self._keep_alive(piece, memo)  # the memo knows it by its id
            copies.append(original(self, piece, memo, non_blocking=non_blocking))
        memo[id(x)] = staged(x, copies)
        return memo[id(x)]

    return offload_tensor


_groups_of_checkpoints: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


def _execute_save(original: Any) -> Any:
    """Where no group is given the saving thread gets one of its own, made at the first save: the training sends over torch's.

    A Gloo group knows messages by their order alone, so two threads cannot share it.
    """

    @functools.wraps(original)
    def execute_save(
        self: Any, *arguments: Any, process_group: Any = None, no_dist: bool = False, **options: Any
    ) -> Any:
        everyone = dist.group.WORLD
        if process_group is None and not no_dist and everyone is not None:
            if everyone not in _groups_of_checkpoints:
                _groups_of_checkpoints[everyone] = dist.new_group(backend="gloo")
            process_group = _groups_of_checkpoints[everyone]
        return original(self, *arguments, process_group=process_group, no_dist=no_dist, **options)

    return execute_save


def staged(tensor: DTensor, copies: list[torch.Tensor]) -> torch.Tensor:
    """What stands for `tensor` in a state dict to be saved, elsewhere perhaps: its pieces' copies and their places, without its mesh."""
    if tensor.dim() == 0 and copies:
        return copies[0]
    offsets = [offset for offset, _ in tensor._saved_boxes()]
    wrapper = LocalShardsWrapper(copies, offsets, dtype=tensor.dtype)
    wrapper.table_size = tensor.size()
    return wrapper
