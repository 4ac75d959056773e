"""A writer of checkpoints that replaces the checkpoint of a folder in one step."""

import dataclasses
import os
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint import filesystem as torchs
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from shardwise.checkpoint.tensor_records import write_tensor


class FileSystemWriter(torchs.FileSystemWriter):
    """torch.distributed.checkpoint's FileSystemWriter, but a folder keeps its old checkpoint until the new one is complete, and tensors are not
    copied.

    FileSystemWriter(path, single_file_per_rank=True, sync_files=True, thread_count=1, ...)    # torch's arguments

    Files of a new checkpoint have new names. When all are written, one rename of the metadata makes it the folder's checkpoint, and the old
    files are removed. If a save fails or a rank is killed, the old checkpoint stays. Files of the failed save may also stay; the next save
    removes them. During a save the folder needs space for both checkpoints. torch's readers can read the result. The writer needs a local
    folder and use_collectives=True. Pieces that are not contiguous, or on a GPU, are written through a buffer of 16 MiB; torch's writer copies
    them, and pieces that share memory, and keeps the copies until all are written.

    >>> import torch.distributed.checkpoint as dcp
    >>> from shardwise.checkpoint import FileSystemWriter
    >>> x = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> metadata = dcp.save({"x": x}, storage_writer=FileSystemWriter("folder"))
    """

    def __init__(self, path: str | os.PathLike[str], *arguments: object, **options: object) -> None:
        super().__init__(path, *arguments, **options)  # type: ignore[arg-type]
        self.fs = _ReplacingFileSystem()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if not self.use_collectives:
            raise ValueError(
                "[checkpoint] use_collectives=False gives each rank its own metadata, so a single rename cannot make the checkpoint valid. "
                "Use torch.distributed.checkpoint.FileSystemWriter and a new folder."
            )
        if not self.overwrite and self._metadata_exists():
            raise RuntimeError(
                f"[checkpoint] {self.path} holds a checkpoint, and overwrite is False. Give another folder, or overwrite=True."
            )
        self.fs.mkdir(self.path)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Gives all ranks' files new names; called on the coordinator only. The writer's `save_id` cannot be used: it may be the id of the
        save before."""
        name = uuid.uuid4().hex
        prefixes = [torchs._StoragePrefix(f"__{name}_{i}_") for i in range(len(plans))]
        return [dataclasses.replace(plan, storage_data=prefix) for plan, prefix in zip(plans, prefixes, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if self.transforms.extensions or self.serialization_format != torchs.SerializationFormat.TORCH_SAVE:
            return super().write_data(plan, planner)
        n, prefix = self.thread_count, plan.storage_data.prefix
        is_one = self.single_file_per_rank
        groups = torchs._split_by_size_and_type(n, plan.items) if is_one else [[item] for item in plan.items]
        names = [f"{prefix}{i}{torchs.DEFAULT_SUFFIX}" for i in range(len(groups))]
        with ThreadPoolExecutor(n) as threads:
            each = map if n == 1 else threads.map
            results = list(chain(*each(partial(self._write_file, planner), names, groups)))
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def _write_file(self, planner: SavePlanner, name: str, items: Iterable[WriteItem]) -> list[WriteResult]:
        results = []
        with self.fs.create_stream(self.fs.concat_path(self.path, name), "wb") as stream:
            for item in items:
                begin, value = stream.tell(), cast(Any, planner.resolve_data(item))
                if item.type == WriteItemType.BYTE_IO:
                    stream.write(value.getbuffer())
                else:
                    write_tensor(stream, value.detach())
                n_bytes = stream.tell() - begin
                results.append(WriteResult(item.index, n_bytes, torchs._StorageInfo(name, begin, n_bytes)))
            if self.sync_files:
                stream.flush()
                os.fsync(stream.fileno())
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        files = {written.storage_data.relative_path for of_rank in results for written in of_rank}
        for path in Path(self.path).glob(f"__*{torchs.DEFAULT_SUFFIX}"):
            if path.name not in files:
                path.unlink(missing_ok=True)


class _ReplacingFileSystem(torchs.FileSystem):
    """Keeps the old metadata until the rename replaces it in one step; torch's writer removes it before."""

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        if Path(path).name != torchs._metadata_fn:
            super().rm_file(path)
