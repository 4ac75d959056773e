"""Finds the elements of a tensor in a file that torch.save() wrote, and reads boxes of it without the rest.

torch.save() writes a zip archive: a pickle with sizes and strides, and the elements, uncompressed, as the record "data/0".
"""

import io
import os
import struct
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch._weights_only_unpickler import Unpickler

from shardwise._progress import Add

BUFFER_BYTES = 16 << 20
NEAR_BYTES = 4096  # smaller gaps between needed runs are read with them: the system reads whole pages anyway
LOCAL_HEADER = struct.Struct("<26xHH")  # the lengths of the name and the extra field of a member of a zip archive


@dataclass(frozen=True)
class TensorRecord:
    """A row-major tensor in a file: its elements from byte `begin` on."""

    begin: int
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """The bytes of one index of the first dim."""
        return int(torch.Size(self.sizes[1:]).numel()) * self.dtype.itemsize


class FilePart(io.RawIOBase):
    """Bytes [begin, begin + length) of a file, as a readable file."""

    def __init__(self, file: IO[bytes], begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, memory: Any, /) -> int:
        self._file.seek(self._begin + self._at)
        n: int = self._file.readinto(memoryview(memory)[: max(0, self._length - self._at)])  # type: ignore[attr-defined]
        self._at += n
        return n


def find_record(file: FilePart, begin: int) -> TensorRecord | None:
    """The tensor of an archive that begins at byte `begin` of the whole file; None unless it is a plain row-major tensor.

    Reads only the archive's directory and pickle. Raises zipfile.BadZipFile, pickle.UnpicklingError or EOFError if they are garbled.
    """
    with zipfile.ZipFile(file) as archive:
        members = {member.filename.partition("/")[2]: member for member in archive.infolist()}
        order = archive.read(members["byteorder"]).decode() if "byteorder" in members else sys.byteorder
        if order != sys.byteorder or "data.pkl" not in members:
            return None
        keys: list[str] = []

        def storage_of(saved: tuple[Any, ...]) -> torch.TypedStorage:
            _, kind, key, _, n = saved
            keys.append(key)
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            memory = torch.UntypedStorage(n * dtype.itemsize, device="meta")
            return torch.TypedStorage(wrap_storage=memory, dtype=dtype, _internal=True)

        with archive.open(members["data.pkl"]) as pickled:
            unpickler = Unpickler(pickled, encoding="utf-8")
            unpickler.persistent_load = storage_of  # type: ignore[method-assign]
            tensor = unpickler.load()
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and len(keys) == 1 and tensor.is_contiguous()
        if not is_plain or tensor.is_conj() or tensor.is_neg():
            return None
        member = members[f"data/{keys[0]}"]
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        first = tensor.storage_offset() * tensor.element_size()
        if member.file_size < first + tensor.nbytes:
            raise zipfile.BadZipFile(f"{member.file_size} bytes of {first + tensor.nbytes} are there")
        file.seek(member.header_offset)
        n_name, n_extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        data = member.header_offset + LOCAL_HEADER.size + n_name + n_extra
        return TensorRecord(begin + data + first, tuple(tensor.shape), tensor.dtype)


def check_sum(file: FilePart) -> None:
    """Reads the whole archive, 16 MiB at a time. Raises zipfile.BadZipFile if its checksums do not fit its elements."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as content:
                while content.read(BUFFER_BYTES):
                    pass


def read_box(
    file: IO[bytes],
    record: TensorRecord,
    offsets: Sequence[int],
    target: torch.Tensor,
    told: Add = lambda n_bytes: None,
) -> None:
    """Fills `target` with the box at `offsets` of the record. `told` is called with the number of bytes of each read.

    Memory: none if the box is one run of the file and `target` is contiguous, on a CPU and of the file's dtype; else 16 MiB, or one row.
    """
    if target.numel() == 0:
        return
    sizes, lengths = (record.sizes, tuple(target.shape)) if record.sizes else ((1,), (1,))
    begin = record.begin + (int(offsets[0]) if record.sizes else 0) * record.row_bytes
    if tuple(lengths[1:]) == tuple(sizes[1:]):
        read_run(file, record, begin, target.view(lengths), told)
        return
    inner = torch.empty(sizes[1:], dtype=record.dtype, device="meta")
    wanted = [slice(o, o + n) for o, n in zip(offsets[1:], lengths[1:], strict=True)]
    first = int(inner[tuple(wanted)].storage_offset()) * record.dtype.itemsize
    n_within = sum((n - 1) * s for n, s in zip(lengths[1:], inner.stride(), strict=True)) + 1
    last = first + n_within * record.dtype.itemsize
    is_near = record.row_bytes - (last - first) <= NEAR_BYTES
    step = max(1, BUFFER_BYTES // record.row_bytes) if is_near else 1
    for row in range(0, lengths[0], step):
        n = min(step, lengths[0] - row)
        buffer = bytearray(n * record.row_bytes)
        span = slice(first, (n - 1) * record.row_bytes + last)
        file.seek(begin + row * record.row_bytes + first)
        fill(file, memoryview(buffer)[span], told)
        rows = torch.frombuffer(buffer, dtype=record.dtype).view(n, *sizes[1:])
        target[row : row + n].copy_(rows[(slice(None), *wanted)])


def read_run(file: IO[bytes], record: TensorRecord, begin: int, target: torch.Tensor, told: Add) -> None:
    """Fills `target` with whole rows from byte `begin` of the file."""
    is_memory = target.is_cpu and target.is_contiguous() and target.dtype == record.dtype
    is_memory = is_memory and not target.is_conj() and not target.is_neg()
    step = max(1, BUFFER_BYTES // max(1, record.row_bytes))
    file.seek(begin)
    for row in range(0, len(target), step):
        part = target[row : row + step]
        own = part if is_memory else torch.empty(part.shape, dtype=record.dtype)
        fill(file, own.reshape(-1).view(torch.uint8).numpy().data, told)
        if not is_memory:
            part.copy_(own)


def fill(file: IO[bytes], memory: memoryview, told: Add) -> None:
    """Fills `memory` from the file. Raises EOFError if the file ends before that."""
    done = 0
    while done < len(memory):
        n = file.readinto(memory[done:])  # type: ignore[attr-defined]
        if not n:
            raise EOFError(f"the file ends {len(memory) - done} bytes too soon")
        done += n
        told(n)
