"""A reader of checkpoints that reads only the needed part of each saved piece, and finds broken files before it loads anything."""

import os
import pickle
import zipfile
from collections.abc import Iterable
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.checkpoint import filesystem as torchs
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from shardwise._progress import check_progress, progress_line
from shardwise.checkpoint.tensor_records import FilePart, TensorRecord, check_sum, find_record, read_box

# A file that is not what was saved raises one of these.
BROKEN = (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError)


class FileSystemReader(torchs.FileSystemReader):
    """torch.distributed.checkpoint's FileSystemReader, for checkpoints of other numbers of ranks and of tensors as large as memory.

        dcp.load(state_dict, storage_reader=FileSystemReader("folder"))

    torch's reader reads each saved piece whole, also if a rank needs only a part of it. This one reads only the needed part, straight into the
    tensor's memory; if that is not contiguous, on a CPU and of the saved dtype, through a buffer of 16 MiB. If two needed parts of rows are less
    than 1 KiB apart, it also reads the bytes between them.

    - `path`: a folder that torch's FileSystemWriter or Shardwise's wrote.
    - `strict`: if True, entries of the checkpoint that no rank loads are an error, which names them.
    - `verify`: if True, each rank first reads every piece of which it needs a part, and compares its checksum.
    - `progress`: a progress line (tqdm) on stderr, of rank 0's bytes; None shows it only on terminals.

    Raises torch's CheckpointException on all ranks, before anything is loaded, if a file that any rank needs is missing, shorter than it was, or
    not what was saved; it names the files. `n_bytes_read` is the number of bytes of elements that were read since the last load began.

    >>> import torch.distributed.checkpoint as dcp
    >>> from shardwise.checkpoint import FileSystemReader, FileSystemWriter
    >>> x = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> metadata = dcp.save({"x": x}, storage_writer=FileSystemWriter("folder"))
    >>> y = sw.zeros(8, 2, device_mesh=mesh, placements=[sw.Shard(1)])  # another layout
    >>> dcp.load({"x": y}, storage_reader=FileSystemReader("folder"))
    >>> y.sum().item()
    16.0
    """

    def __init__(
        self, path: str | os.PathLike[str], *, strict: bool = False, verify: bool = False, progress: bool | None = None
    ) -> None:
        check_progress(progress)
        super().__init__(path)
        self.strict, self.verify, self.progress, self.n_bytes_read = strict, verify, progress, 0
        self._records: dict[MetadataIndex, TensorRecord | None] = {}
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = self._get_metadata_path(kwargs.get("rank"))
        try:
            return super().read_metadata(*args, **kwargs)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"[checkpoint] {path} does not exist: the folder holds no complete checkpoint. Give another folder."
            ) from None
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as wrong:
            raise RuntimeError(
                f"[checkpoint] {path} is corrupt ({wrong}). Nothing has been loaded. Take another save."
            ) from wrong

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._metadata, self._records, self.n_bytes_read = metadata, {}, 0

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Finds all pieces that this rank needs, before any rank begins to load. torch raises the error of one rank on all ranks."""
        wrong: dict[str, str] = {}
        for path, items in self._by_file(plan).items():
            try:
                self._find_records(path, items)
            except BROKEN as error:
                wrong[path] = str(error).partition(". ")[0] or type(error).__name__  # torch goes on about its internals
        if wrong:
            told = "; ".join(f"{path} ({text})" for path, text in wrong.items())
            raise RuntimeError(
                f"[checkpoint] corrupt files in {self.path}: {told}. Nothing has been loaded. Take another save."
            )
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        if self.strict and self._metadata is not None:
            asked = {item.storage_index.fqn for plan in plans for item in plan.items}
            extra = [
                name
                for name, saved in self._metadata.state_dict_metadata.items()
                if name not in asked and not (isinstance(saved, TensorStorageMetadata) and saved.size.numel() == 0)
            ]
            if extra:
                raise RuntimeError(
                    f"[checkpoint] the checkpoint has {', '.join(extra)}, which the state dict does not have. Nothing has been loaded. Add "
                    "them to the state dict, or leave strict=True out."
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        records = [(item, self._records[item.storage_index]) for item in plan.items]
        rest = [item for item, record in records if record is None]  # all but plain tensors: torch's reader reads it
        total = sum(int(item.lengths.numel()) * record.dtype.itemsize for item, record in records if record is not None)
        is_first = not dist.is_initialized() or dist.get_rank() == 0
        with progress_line("loading", total, self.progress, is_first) as add:

            def told(n_bytes: int) -> None:
                self.n_bytes_read += n_bytes
                add(n_bytes)

            for path, items in self._by_file(plan).items():
                with open(os.path.join(self.path, path), "rb", buffering=0) as file:
                    for item in items:
                        if (record := self._records[item.storage_index]) is not None:
                            target = planner.resolve_tensor(item).detach()
                            read_box(file, record, item.storage_offsets, target, told)
                            planner.commit_tensor(item, target)
        return super().read_data(LoadPlan(rest), planner)

    def _by_file(self, plan: LoadPlan) -> dict[str, list[ReadItem]]:
        """The items by file, in the order of their bytes."""
        files: dict[str, list[ReadItem]] = {}
        for item in sorted(plan.items, key=lambda item: self.storage_data[item.storage_index].offset):
            files.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        return files

    def _find_records(self, path: str, items: Iterable[ReadItem]) -> None:
        with open(os.path.join(self.path, path), "rb", buffering=0) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            for item in items:
                index, saved = item.storage_index, self.storage_data[item.storage_index]
                if saved.offset + saved.length > n_bytes:
                    raise EOFError(f"{n_bytes:,} bytes, and {index.fqn} ends at {saved.offset + saved.length:,}")
                if index in self._records:
                    continue
                self._records[index] = None
                if item.type == LoadItemType.BYTE_IO or saved.transform_descriptors:
                    continue
                part = FilePart(file, saved.offset, saved.length)
                if self.verify:
                    check_sum(part)
                tensor: Any = cast(Metadata, self._metadata).state_dict_metadata[index.fqn]
                sizes = next(chunk.sizes for chunk in tensor.chunks[index.index :] if chunk.offsets == index.offset)
                self._records[index] = find_record(part, saved.offset, sizes, tensor.properties.dtype)
