"""Whole tables in and out of a DistributedEmbedding: arrays, and .npy files of which each rank reads its own part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from shardwise.distributed_embedding.layer import DistributedEmbedding

CHUNK_BYTES = 64 << 20
MAX_ELEMENTS = 2**31 - 1  # of one message
Array = np.ndarray[Any, Any]


def get_weights(layer: DistributedEmbedding, all_ranks: bool) -> list[Array] | None:
    arrays: list[Array] = []
    takes = all_ranks or layer.mesh.get_local_rank() == 0
    for index, config in enumerate(layer.configs):
        array: Array | None = None
        for begin, end in chunks(config.n_rows, row_bytes(layer, index), config.n_columns):
            rows = layer._core.gathered_rows(index, begin, end, None if all_ranks else 0)
            if rows is None:
                continue
            part = to_numpy(rows)
            if array is None:
                array = np.empty((config.n_rows, config.n_columns), part.dtype)
            array[begin:end] = part
        if array is not None:
            arrays.append(array)
    return arrays if takes else None


def set_weights(layer: DistributedEmbedding, weights: Sequence[Array | torch.Tensor | str | os.PathLike[str]]) -> None:
    error: Exception | None = None
    arrays: list[Array] = []
    try:
        arrays = opened(layer, weights)
    except Exception as wrong:  # the others learn of it
        error = wrong
    raise_together(layer, error)
    for index, array in enumerate(arrays):
        for values, rows, columns in layer._core.pieces(index):
            for begin, end in chunks(len(values), row_bytes(layer, index), values.shape[1]):
                part = array[rows.start + begin : rows.start + end, columns]
                with torch.no_grad():
                    values[begin:end].copy_(from_numpy(part, values.dtype))


def opened(layer: DistributedEmbedding, weights: Sequence[Any]) -> list[Array]:
    """All checked, none read but its header."""
    if len(weights) != len(layer.configs):
        raise ValueError(
            f"[set_weights] got {len(weights)} arrays for {len(layer.configs)} tables. Give one for each, in their order."
        )
    arrays, wrong = [], []
    for value, config in zip(weights, layer.configs, strict=True):
        array = np.load(value, mmap_mode="r") if isinstance(value, str | os.PathLike) else value
        array = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array
        if tuple(array.shape) != (config.n_rows, config.n_columns):
            wrong.append(f"{config.name} is {list(array.shape)} and not [{config.n_rows}, {config.n_columns}]")
        arrays.append(array)
    if wrong:
        raise ValueError(f"[set_weights] these tables have other shapes: {'; '.join(wrong)}. Nothing was written.")
    return arrays


def raise_together(layer: DistributedEmbedding, error: Exception | None) -> None:
    """Raises this rank's error, or that of the first rank which has one, on all ranks."""
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


def row_bytes(layer: DistributedEmbedding, table: int) -> int:
    parameter = layer.tables[layer.configs[table].name]
    return int(parameter.element_size()) * layer.configs[table].n_columns


def to_numpy(tensor: torch.Tensor) -> Array:
    """NumPy has no bfloat16: its values as float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def from_numpy(array: Array, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(dtype)
