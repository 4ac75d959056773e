"""The memory of this process, and of a rank's parts of tensors."""

import resource
import sys
from collections.abc import Iterator

import torch

from shardwise import _C
from shardwise.dtensor import DTensor
from shardwise.interop.torch_tensors import is_torch_dtensor


def peak_of_process() -> int:
    """The most bytes that were in memory at one time so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def local_tensors(value: object) -> Iterator[torch.Tensor]:
    """This rank's parts of a tensor; for a sparse one their values and indices. None for other values."""
    if not isinstance(value, torch.Tensor):
        return
    if isinstance(value, DTensor):
        pieces = _C.to_pieces(value.detach())
    else:
        pieces = [value.to_local() if is_torch_dtensor(value) else value]  # type: ignore[attr-defined]
    for piece in pieces:
        yield from (piece._values(), piece._indices()) if piece.is_sparse else (piece,)
