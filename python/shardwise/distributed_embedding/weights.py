"""Whole tables in and out of a DistributedEmbedding, as arrays or files. Rank 0 writes files piece by piece; each rank reads its own part."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np
import torch

from shardwise._progress import Add, check_progress, progress_line
from shardwise.distributed_embedding.table_parameters import EmbeddingTables

CHUNK_BYTES = 64 << 20
MAX_ELEMENTS = 2**31 - 1  # of one message
Array = np.ndarray[Any, Any]
Given = Sequence[Array | torch.Tensor | str | os.PathLike[str]] | str | os.PathLike[str]

SAFETENSORS_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def get_weights(layer: EmbeddingTables, all_ranks: bool = False, *, progress: bool | None = None) -> list[Array] | None:
    """All tables, whole, as arrays in the order of the tables, on rank 0 or on all ranks; None on the others. bfloat16 becomes float32.

    progress: a progress line (tqdm) on stderr of rank 0; None shows it only on terminals.

    Collective. Each row is sent once, in chunks of 64 MiB. Memory on a rank that gets the arrays: all tables and one chunk.
    """
    check_progress(progress)
    arrays: list[Array] = []
    takes = all_ranks or layer.mesh.get_local_rank() == 0
    total = sum(config.n_rows * row_bytes(layer, index) for index, config in enumerate(layer.configs))
    with progress_line("gathering", total, progress, layer.mesh.get_local_rank() == 0) as add:
        for index, config in enumerate(layer.configs):
            if takes:
                arrays.append(np.empty((config.n_rows, config.n_columns), numpy_dtype(layer, index)))
            for begin, end in chunks(config.n_rows, row_bytes(layer, index), config.n_columns):
                rows = layer._core.gathered_rows(index, begin, end, None if all_ranks else 0)
                if rows is not None:
                    arrays[index][begin:end] = to_numpy(rows)
                add((end - begin) * row_bytes(layer, index))
    return arrays if takes else None


def save_weights(layer: EmbeddingTables, folder: str | os.PathLike[str], *, progress: bool | None = None) -> None:
    """Writes <folder>/<table>.npy for each table, as set_weights() reads them on any number of ranks. bfloat16 becomes float32.

    Rank 0 writes all files, with two chunks of 64 MiB in memory; each row is sent once. Existing files are replaced when all new files are
    complete. Collective. If a file cannot be written, rank 0 raises OSError, and the others RuntimeError with the same text.
    """

    def header_of(index: int) -> Callable[[IO[bytes]], None]:
        shape = (layer.configs[index].n_rows, layer.configs[index].n_columns)
        kind = np.lib.format.dtype_to_descr(numpy_dtype(layer, index))
        described = {"descr": kind, "fortran_order": False, "shape": shape}
        return lambda file: np.lib.format.write_array_header_1_0(file, described)

    files = [(index, path, header_of(index), to_numpy) for index, path in enumerate(files_in(layer, folder))]
    write_files(layer, files, progress)


def export_safetensors(
    layer: EmbeddingTables,
    table: int | str,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    progress: bool | None = None,
) -> None:
    """Writes one whole table, in its own dtype, as the tensor `name` of a safetensors file. Default: the name of the table.

    Memory, messages and errors are those of save_weights().
    """
    index = layer._index_of(table)
    config = layer.configs[index]
    kind, offsets = SAFETENSORS_NAMES[layer.tables[config.name].dtype], [0, config.n_rows * row_bytes(layer, index)]
    described = {"dtype": kind, "shape": [config.n_rows, config.n_columns], "data_offsets": offsets}
    text = json.dumps({config.name if name is None else name: described}).encode()
    text += b" " * (-len(text) % 8)  # so that the elements begin at a multiple of 8

    def write_header(file: IO[bytes]) -> None:
        file.write(len(text).to_bytes(8, "little") + text)

    def bytes_of(rows: torch.Tensor) -> Array:
        flat: Array = rows.cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return flat

    write_files(layer, [(index, Path(path), write_header, bytes_of)], progress)


BytesOf = Callable[[torch.Tensor], Array]
File = tuple[int, Path, Callable[[IO[bytes]], None], BytesOf]


def write_files(layer: EmbeddingTables, files: Sequence[File], progress: bool | None) -> None:
    """Rank 0 writes each (table, path, header, bytes of rows) under a temporary name, and renames the files when all are written. Collective:
    after each chunk, all ranks know whether rank 0 could write it."""
    check_progress(progress)
    is_writer = layer.mesh.get_local_rank() == 0
    total = sum(layer.configs[index].n_rows * row_bytes(layer, index) for index, *_ in files)
    try:
        with progress_line("writing", total, progress, is_writer) as add:
            for index, path, write_header, bytes_of in files:
                with contextlib.ExitStack() as stack:
                    file: IO[bytes] | None = None
                    with together(layer):
                        if is_writer:
                            path.parent.mkdir(parents=True, exist_ok=True)
                            file = stack.enter_context(open(unfinished(path), "wb"))
                            write_header(file)
                    write_rows(layer, index, file, bytes_of, add)
        with together(layer):
            for _, path, _, _ in files if is_writer else ():
                os.replace(unfinished(path), path)
    except Exception:
        for _, path, _, _ in files if is_writer else ():
            unfinished(path).unlink(missing_ok=True)
        raise


def write_rows(layer: EmbeddingTables, index: int, file: IO[bytes] | None, bytes_of: BytesOf, add: Add) -> None:
    config = layer.configs[index]
    for begin, end in chunks(config.n_rows, row_bytes(layer, index), config.n_columns):
        rows = layer._core.gathered_rows(index, begin, end, 0)
        with together(layer):  # the disk may be full
            if rows is not None and file is not None:
                file.write(np.ascontiguousarray(bytes_of(rows)).data.cast("B"))
                if end == config.n_rows:
                    file.flush()
                    os.fsync(file.fileno())
        add((end - begin) * row_bytes(layer, index))


def unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".unfinished")


def set_weights(layer: EmbeddingTables, arrays: Given, *, progress: bool | None = None) -> None:
    """Sets whole tables, in the order of the tables: arrays that are equal on all ranks, paths of .npy files, or the folder that save_weights()
    wrote. Each rank maps the files into memory and reads only its own rows and columns. A layer on other ranks, with another plan, may have
    written them.

    progress: a progress line (tqdm) on stderr of rank 0, of its own bytes; None shows it only on terminals.

    Collective; no values are sent. Additional memory: one chunk of 64 MiB. Raises, on all ranks and before anything is written, ValueError
    for a wrong number of tables and for wrong shapes, all named, and NumPy's errors for files that it cannot read.
    """
    check_progress(progress)
    with together(layer):
        whole = opened(layer, files_in(layer, arrays) if isinstance(arrays, str | os.PathLike) else arrays)
    own = sum(values.nbytes for index in range(len(whole)) for values, _, _ in layer._core.pieces(index))
    with progress_line("loading", own, progress, layer.mesh.get_local_rank() == 0) as add:
        for index, array in enumerate(whole):
            for values, rows, columns in layer._core.pieces(index):
                for begin, end in chunks(len(values), row_bytes(layer, index), values.shape[1]):
                    part = array[rows.start + begin : rows.start + end, columns]
                    with torch.no_grad():
                        values[begin:end].copy_(from_numpy(part, values.dtype))
                    add(values[begin:end].nbytes)


def opened(layer: EmbeddingTables, weights: Sequence[Any]) -> list[Array]:
    """The arrays, checked. Only the headers of files have been read."""
    if len(weights) != len(layer.configs):
        raise ValueError(
            f"[set_weights] got {len(weights)} arrays for {len(layer.configs)} tables. Give one for each, in their order."
        )
    arrays, wrong = [], []
    for value, config in zip(weights, layer.configs, strict=True):
        array = np.load(value, mmap_mode="r") if isinstance(value, str | os.PathLike) else value
        array = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array
        if not isinstance(array, np.ndarray):
            wrong.append(f"{config.name} is a {type(value).__name__} and not an array of real numbers")
        elif array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:  # torch has no long double
            wrong.append(f"{config.name} is of {array.dtype} and not an array of real numbers of up to 8 bytes")
        elif tuple(array.shape) != (config.n_rows, config.n_columns):
            wrong.append(f"{config.name} is {list(array.shape)} and not [{config.n_rows}, {config.n_columns}]")
        arrays.append(array)
    if wrong:
        raise ValueError(
            f"[set_weights] these tables do not fit: {'; '.join(wrong)}. Nothing was written. Give arrays of the tables' shapes."
        )
    return arrays


def files_in(layer: EmbeddingTables, folder: str | os.PathLike[str]) -> list[Path]:
    """The paths that save_weights() writes. Characters of a table's name that a file name cannot have are quoted."""
    return [Path(folder) / f"{quote(config.name, safe=' ')}.npy" for config in layer.configs]


@contextlib.contextmanager
def together(layer: EmbeddingTables) -> Iterator[None]:
    """A `with` block whose error is raised on all ranks: a rank's own, or that of the first rank that has one. Collective at the end of the block."""
    error: Exception | None = None
    try:
        yield
    except Exception as wrong:
        error = wrong
    try:
        layer._core.raise_together(None if error is None else (type(error).__name__, str(error)))
    except Exception:
        if error is not None:
            raise error from None
        raise


def chunks(n_rows: int, bytes_of_row: int, n_columns: int) -> Iterator[tuple[int, int]]:
    step = max(1, min(CHUNK_BYTES // max(bytes_of_row, 1), MAX_ELEMENTS // max(n_columns, 1)))
    for begin in range(0, n_rows, step):
        yield begin, min(begin + step, n_rows)


def row_bytes(layer: EmbeddingTables, table: int) -> int:
    parameter = layer.tables[layer.configs[table].name]
    return int(parameter.element_size()) * layer.configs[table].n_columns


def numpy_dtype(layer: EmbeddingTables, table: int) -> np.dtype[Any]:
    """The dtype of the array of a table: float32 for bfloat16, which NumPy does not have."""
    dtype = layer.tables[layer.configs[table].name].dtype
    return np.dtype(str(dtype).removeprefix("torch.") if dtype != torch.bfloat16 else "float32")


def to_numpy(tensor: torch.Tensor) -> Array:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def from_numpy(array: Array, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="))).to(dtype)
