"""Tensors in the archives of torch.save(): written without a copy, found again, and read box by box.

An archive is a zip file: a pickle with sizes and strides, and the elements, uncompressed, as the record "data/0".
"""

import io
import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

import torch

from shardwise import _C
from shardwise._progress import Add

try:
    from zlib_ng.zlib_ng import crc32  # takes a tenth of the time
except ImportError:
    from zlib import crc32

BUFFER_BYTES = 16 << 20
BLOCK_BYTES = 256 << 10  # stays in a core's cache between its checksum and its write
MANY = 0xFFFFFFFF  # the number of bytes stands in a field of 64 bits instead


@dataclass(frozen=True)
class TensorRecord:
    """A row-major tensor in a file: its elements from byte `begin` on."""

    begin: int
    sizes: tuple[int, ...]
    dtype: torch.dtype


class FilePart(io.RawIOBase):
    """Bytes [begin, begin + length) of a file, as a readable file."""

    def __init__(self, file: IO[bytes], begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence])
        return self._at

    def readinto(self, memory: Any, /) -> int:
        self._file.seek(self._begin + self._at)
        n: int = self._file.readinto(memoryview(memory)[: max(0, self._length - self._at)])  # type: ignore[attr-defined]
        self._at += n
        return n


class _Pickler(pickle.Pickler):
    """Pickles a tensor on meta as torch.save() pickles a row-major tensor on a CPU, which is alone in its memory."""

    kind: type
    n: int

    def reducer_override(self, value: Any, /) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        made_of: Any = (self, 0, tuple(value.shape), value.stride(), False, OrderedDict())
        if self.kind is torch.UntypedStorage:
            return torch._utils._rebuild_tensor_v3, (*made_of, value.dtype)
        return torch._utils._rebuild_tensor_v2, made_of

    def persistent_id(self, value: Any, /) -> Any:
        return ("storage", self.kind, "0", "cpu", self.n) if value is self else None


def _pickled(sizes: Sequence[int], dtype: torch.dtype) -> bytes:
    like, stream = torch.empty(sizes, dtype=dtype, device="meta"), io.BytesIO()
    pickler = _Pickler(stream, protocol=2)
    kind = torch.storage._dtype_to_storage_type_map().get(dtype)  # none for newer dtypes
    pickler.kind, pickler.n = getattr(torch, kind or "UntypedStorage"), like.numel() if kind else like.nbytes
    pickler.dump(like)
    return stream.getvalue()


def find_record(file: FilePart, begin: int, sizes: Sequence[int], dtype: torch.dtype) -> TensorRecord | None:
    """The row-major tensor of an archive that begins at byte `begin` of the whole file; None if the archive has something else.

    Reads only the archive's directory and pickle. Raises RuntimeError or EOFError if they are garbled.
    """
    file.seek(0)  # where the archive begins for torch
    archive: Any = torch._C.PyTorchFileReader(cast(Any, file))
    order = archive.get_record("byteorder").decode() if archive.has_record("byteorder") else sys.byteorder
    if order != sys.byteorder or archive.get_record("data.pkl") != _pickled(sizes, dtype):
        return None
    at = archive.get_record_offset("data/0")
    if at + torch.Size(sizes).numel() * dtype.itemsize > file.seek(0, os.SEEK_END):
        raise EOFError(f"its elements end after its {file.tell():,} bytes")
    return TensorRecord(begin + at, tuple(sizes), dtype)


def write_tensor(stream: Any, tensor: torch.Tensor) -> None:
    """Writes the archive of torch.save(), of row-major elements. Memory: none if `tensor` has such elements on a CPU; else 16 MiB."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        torch.save(tensor, stream)
        return
    texts = {"data.pkl": _pickled(tensor.shape, tensor.dtype), "byteorder": sys.byteorder.encode(), "version": b"3\n"}
    records: dict[str, Iterable[Any]] = {**{name: [text] for name, text in texts.items()}, "data/0": _blocks(tensor)}
    at, directory = 0, b""
    for name, blocks in records.items():
        path, crc, n_bytes = f"archive/{name}".encode(), 0, 0
        stream.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 8, 0, 0, 0, 0, 0, 0, len(path), 0) + path)
        for block in blocks:
            stream.write(block)
            crc, n_bytes = crc32(block, crc), n_bytes + len(block)
        stream.write(struct.pack("<4sIQQ", b"PK\7\10", crc, n_bytes, n_bytes))
        entry = (b"PK\1\2", 45, 45, 8, 0, 0, 0, crc, MANY, MANY, len(path), 28, 0, 0, 0, 0, MANY)
        directory += struct.pack("<4s6H3I5H2I", *entry) + path + struct.pack("<2H3Q", 1, 24, n_bytes, n_bytes, at)
        at += 30 + len(path) + n_bytes + 24
    n = len(records)
    stream.write(directory + struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, n, n, len(directory), at))
    stream.write(struct.pack("<4sIQI", b"PK\6\7", 0, at + len(directory), 1))
    stream.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, n, n, MANY, MANY, 0))


def _blocks(tensor: torch.Tensor) -> Iterator[Any]:
    for _, part in _parts(tensor):
        memory = part.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().data
        yield from (memory[at : at + BLOCK_BYTES] for at in range(0, len(memory), BLOCK_BYTES))


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

    Memory: 256 KiB if `target` is contiguous, on a CPU and of the file's dtype; else 16 MiB.
    """
    for places, part in _parts(target):
        is_memory = (
            part.is_cpu
            and part.is_contiguous()
            and part.dtype == record.dtype
            and not (part.is_conj() or part.is_neg())
        )
        own = part if is_memory else torch.empty(part.shape, dtype=record.dtype)
        at = [offset + place for offset, place in zip(offsets, places, strict=False)]
        told(_C.read_box(file.fileno(), record.begin, record.sizes, at, own))
        if own is not part:
            part.copy_(own)


def _parts(tensor: torch.Tensor) -> Iterator[tuple[list[int], torch.Tensor]]:
    """(offsets, view) of parts of at most 16 MiB, in row-major order."""
    if tensor.nbytes <= BUFFER_BYTES:
        yield [0] * tensor.dim(), tensor
        return
    dim = next(dim for dim, n in enumerate(tensor.shape) if n > 1)
    n = max(1, tensor.shape[dim] * BUFFER_BYTES // tensor.nbytes)
    for begin, rows in enumerate(tensor.split(n, dim)):
        for offsets, part in _parts(rows):
            offsets[dim] += begin * n
            yield offsets, part
