"""Checkpoints in a dry run: plans of torch.distributed.checkpoint are made and sent as in a run, and no file is written. If a checkpoint to load exists,
its metadata is read.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from math import prod
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, WriteItem, WriteItemType
from torch.utils._pytree import tree_leaves

from shardwise import _C
from shardwise._dry_run.figures import FileAccess
from shardwise.dtensor import DTensor


def changes_of_checkpoints(accesses: list[FileAccess]) -> Iterator[AbstractContextManager[Any]]:
    """Notes each save and load in `accesses`."""

    def note(kind: str, storage: Any, plan: Any, n_bytes: int, is_there: bool = True) -> None:
        accesses.append(FileAccess(_C.program_line(), kind, path_of(storage), len(plan.items), n_bytes, is_there))

    def save(
        state_dict: dict[str, Any],
        storage_writer: Any,
        process_group: Any = None,
        coordinator_rank: int = 0,
        no_dist: bool = False,
        planner: Any = None,
        use_collectives: bool = True,
    ) -> Metadata:
        planner = planner or DefaultSavePlanner()
        plan = plan_of(planner, state_dict)
        n_bytes = sum(share_of(each, state_dict, planner, no_dist, process_group) for each in plan.items)
        exchange(plan, process_group, no_dist or not use_collectives)
        note("save", storage_writer, plan, n_bytes)
        return Metadata({})

    def load(
        state_dict: dict[str, Any],
        storage_reader: Any,
        process_group: Any = None,
        coordinator_rank: int = 0,
        no_dist: bool = False,
        planner: Any = None,
        use_collectives: bool = True,
    ) -> None:
        metadata: Metadata | None = None
        with suppress(OSError):
            metadata = storage_reader.read_metadata()
        if metadata is None:  # the checkpoint of a program that saves these tensors
            saver = DefaultSavePlanner()
            plan = plan_of(saver, state_dict)
            n_bytes = sum(bytes_of(each, saver) for each in plan.items)
        else:
            planner = planner or DefaultLoadPlanner()
            planner.set_up_planner(state_dict, metadata, True)
            storage_reader.set_up_storage_reader(metadata, True)
            plan = planner.create_local_plan()
            n_bytes = sum(bytes_to_read(each, metadata, storage_reader) for each in plan.items)
        exchange(plan, process_group, no_dist or not use_collectives)
        note("load", storage_reader, plan, n_bytes, metadata is not None)

    write = torch.save

    def save_file(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            write(obj, f, *args, **kwargs)
            return
        tensors = [each for each in tree_leaves(obj) if isinstance(each, torch.Tensor)]
        n_bytes = sum(each.to_local().nbytes if isinstance(each, DTensor) else each.nbytes for each in tensors)
        accesses.append(FileAccess(_C.program_line(), "save", str(f), len(tensors), n_bytes, True))

    yield mock.patch.object(torch, "save", save_file)
    with suppress(ModuleNotFoundError):
        import safetensors.torch

        yield mock.patch.object(
            safetensors.torch, "save_file", lambda tensors, f, *args, **kwargs: save_file(tensors, f)
        )
    yield mock.patch.object(state_dict_saver, "_save_state_dict", save)
    yield mock.patch.object(state_dict_loader, "_load_state_dict", load)


def plan_of(planner: Any, state_dict: dict[str, Any]) -> Any:
    planner.set_up_planner(state_dict=state_dict, storage_meta=None, is_coordinator=True)
    return planner.create_local_plan()


def exchange(plan: Any, group: Any, is_alone: bool) -> None:
    """The messages of the plans: to the coordinator and back. Then the ranks tell that they are done."""
    if is_alone or not dist.is_initialized():
        return
    n_ranks = dist.get_world_size(group)
    dist.gather_object(plan, [None] * n_ranks if dist.get_rank(group) == 0 else None, group_dst=0, group=group)
    dist.scatter_object_list([None], [plan] * n_ranks, group_src=0, group=group)
    dist.all_gather_object([None] * n_ranks, None, group=group)


def bytes_of(item: WriteItem, planner: Any) -> int:
    if item.tensor_data is None:
        return len(planner.resolve_data(item).getbuffer())
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize


def share_of(item: WriteItem, state_dict: Any, planner: Any, no_dist: bool, group: Any) -> int:
    """This rank's share of an item that several ranks hold. One of them writes it; each item counts as divided evenly over them."""
    value, n_holders = planner.lookup_object(item.index), 1
    if isinstance(value, DTensor):
        mesh = value.device_mesh
        n_holders = prod(mesh.size(dim) for dim, each in enumerate(value.placements) if each.is_replicate())
    elif item.type != WriteItemType.SHARD and not no_dist and dist.is_initialized():
        n_holders = dist.get_world_size(group)
    return -(-bytes_of(item, planner) // n_holders)


def bytes_to_read(item: Any, metadata: Metadata, reader: Any) -> int:
    """torch's readers read whole pieces; ours reads what this rank needs."""
    saved = metadata.storage_data[item.storage_index]
    if item.type == LoadItemType.BYTE_IO or not hasattr(reader, "n_bytes_read"):
        return int(getattr(saved, "length", 0))
    dtype: torch.dtype = metadata.state_dict_metadata[item.storage_index.fqn].properties.dtype  # type: ignore[union-attr]
    return item.lengths.numel() * dtype.itemsize


def path_of(storage: Any) -> str:
    return str(getattr(storage, "path", getattr(storage, "checkpoint_id", type(storage).__name__)))
