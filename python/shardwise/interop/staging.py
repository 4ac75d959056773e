"""Copies our tensors for checkpoints that are written while training goes on (torch.distributed.checkpoint.async_save)."""

from concurrent.futures import Future
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shardwise import _C
from shardwise.dtensor import DTensor
from shardwise.local_shards_wrapper import LocalShardsWrapper


def offload_tensor(
    original: Any, self: Any, x: torch.Tensor, memo: dict[int, Any], non_blocking: bool = False
) -> torch.Tensor:
    """Makes StateDictStager copy our tensors piece by piece."""
    if not isinstance(x, DTensor):
        return original(self, x, memo, non_blocking=non_blocking)
    pieces = _C.detached_pieces(x, "checkpoint")
    for piece in pieces:
        self._keep_alive(piece, memo)  # the memo has it by its id
    memo[id(x)] = staged(x, [original(self, piece, memo, non_blocking=non_blocking) for piece in pieces])
    return memo[id(x)]


def staged(tensor: DTensor, copies: list[torch.Tensor]) -> torch.Tensor:
    """Returns the stand-in of `tensor` in a state dict that is saved, perhaps by another process: copies of its pieces and their offsets,
    without its mesh."""
    if tensor.dim() == 0 and copies:
        return copies[0]
    offsets = [offset for offset, _ in tensor._saved_boxes()]
    wrapper = LocalShardsWrapper(copies, offsets, dtype=tensor.dtype)
    wrapper.table_size = tensor.size()
    wrapper.trained_on = tensor.device_mesh.device_type
    return wrapper


def execute_save(original: Any, self: Any, state: Any, **options: Any) -> Any:
    """Checks the group before a thread saves, so that async_save() raises the error, if the state dict is staged already."""
    if not isinstance(state, Future):
        _check_group(state, **options)
    return original(self, state, **options)


def save_wrapper(original: Any, staging_future_or_state_dict: Any, **options: Any) -> Any:
    """Checks the group in the saving thread, so that the future of the save has the error, if a thread staged the state dict."""
    state = staging_future_or_state_dict
    _check_group(state.result() if isinstance(state, Future) else state, **options)
    return original(state, **options)


def _check_group(state: Any, *, process_group: Any = None, no_dist: bool = False, **options: Any) -> None:
    """Raises ValueError if tensors of a CPU mesh would be saved over the world's group while training sends over it. Gloo matches the messages of a
    group by their order, so two threads cannot share one."""
    if (
        process_group is None
        and not no_dist
        and any(isinstance(each, LocalShardsWrapper) and each.trained_on == "cpu" for each in pytree.tree_leaves(state))
    ):
        raise ValueError(
            "[async_save] a thread would save DTensors of a CPU mesh over the process group that training uses, and Gloo confuses the "
            'messages of two threads. Give it its own group: process_group=dist.new_group(backend="gloo"), made once on all ranks.'
        )
