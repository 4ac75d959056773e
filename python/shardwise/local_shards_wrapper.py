"""LocalShardsWrapper: this rank's pieces of a table, as TorchRec hands them over, in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from shardwise import _C
from shardwise._build_facts import LAYERS

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata


class LocalShardsWrapper(torch.Tensor):
    """This rank's pieces of a table and their offsets in it. There may be any number of pieces: rows, columns or cells of a grid.

    LocalShardsWrapper(local_shards=[rows], offsets=[(4, 0)])    # a piece of shape (2, 16): rows [4, 6) of an 8x16 table

    Pieces are aliased, not copied. Operators run on each piece, in C++; operators that need several pieces at a time raise an error.
    DTensor.from_local(wrapper, mesh, placements) makes one distributed tensor of the ranks' wrappers, and its to_local() gives them back.
    `dtype` and `device` are used only if there are no pieces.

    >>> rows = torch.full((2, 3), float(rank))
    >>> wrapper = sw.LocalShardsWrapper([rows], [(2 * rank, 0)])
    >>> table = sw.DTensor.from_local(wrapper, mesh, [sw.Shard(0)])
    >>> table.shape, table.placements
    (torch.Size([8, 3]), (Shard(0),))
    >>> table.to_local().local_offsets()
    [torch.Size([0, 0])]
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(
        cls,
        local_shards: Sequence[torch.Tensor],
        offsets: Sequence[Sequence[int]] | None = None,
        *,
        local_offsets: Sequence[Sequence[int]] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> LocalShardsWrapper:
        if (offsets is None) == (local_offsets is None):
            raise TypeError("[LocalShardsWrapper] takes the offsets once. Give offsets= or local_offsets=.")
        places = local_offsets if offsets is None else offsets
        at = None if device is None else torch.device(device)
        wrapper: LocalShardsWrapper = _C.make_local_shards(
            list(local_shards), [list(place) for place in places or ()], dtype, at
        )
        return wrapper

    def local_shards(self) -> list[torch.Tensor]:
        """The pieces."""
        return _C.local_shards(self)

    def local_sizes(self) -> list[torch.Size]:
        """The size of each piece."""
        return [torch.Size(size) for size in _C.local_sizes(self)]

    def local_offsets(self) -> list[torch.Size]:
        """The offsets of each piece: the indices of its first element in the table."""
        return [torch.Size(offsets) for offsets in _C.local_offsets(self)]

    @property
    def shards(self) -> list[torch.Tensor]:
        return self.local_shards()

    @property
    def shard_sizes(self) -> list[torch.Size]:
        return self.local_sizes()

    @property
    def shard_offsets(self) -> list[torch.Size]:
        return self.local_offsets()

    def is_empty_shard(self) -> bool:
        """True where this rank holds no element."""
        return self.numel() == 0

    def storage_metadata(self) -> TensorStorageMetadata:
        """The metadata for checkpoints: one chunk per piece, the size of this rank's part and the tensor's properties."""
        from shardwise.checkpoint import chunks

        return chunks.storage_metadata(self, self._boxes())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        pieces = ", ".join(
            f"{list(offsets)}: {piece}"
            for offsets, piece in zip(self.local_offsets(), _C.local_shards(self.detach()), strict=True)
        )
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"LocalShardsWrapper({{{pieces}}}, dtype={self.dtype}{grad})"

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalShardsWrapper:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "[LocalShardsWrapper] only leaves of the autograd graph can be deep-copied. Use detach() or clone()."
            )
        result = cast(LocalShardsWrapper, self.detach().clone().requires_grad_(self.requires_grad))
        memo[id(self)] = result
        result.__dict__.update(copy.deepcopy(self.__dict__, memo))
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        return result

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, tuple[Any, ...]]:
        layout = (_C.local_offsets(self), self.dtype, self.device, self.dim())
        return rebuild_local_shards, (_C.local_shards(self.detach()), *layout, self.requires_grad, self.__dict__)

    # These import torch.distributed.checkpoint when called: only programs that save need it.

    def __create_write_items__(self, fqn: str, object: Any) -> Any:
        from shardwise.checkpoint import chunks

        return chunks.write_items(self, fqn, self._boxes(), self._reach())

    def __create_chunk_list__(self) -> Any:
        from shardwise.checkpoint import chunks

        return chunks.chunks(self._boxes())

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        from shardwise.checkpoint import chunks

        return chunks.piece_at(index, self._boxes(), _C.local_shards(self.detach()))

    def _boxes(self) -> list[tuple[list[int], list[int]]]:
        return list(zip(_C.local_offsets(self), _C.local_sizes(self), strict=True))

    table_size: torch.Size | None = None
    """The size of the whole table, which a copy of a DTensor that is being saved knows."""
    trained_on = ""
    """The device type of the mesh, in such a copy."""

    def _reach(self) -> torch.Size:
        """The size of the table, as far as this rank's own pieces reach: a wrapper knows no other ranks. A table of several ranks is saved as a
        DTensor instead."""
        if self.table_size is not None:
            return self.table_size
        ends = [[o + n for o, n in zip(offsets, sizes, strict=True)] for offsets, sizes in self._boxes()]
        return torch.Size(max(along) for along in zip(*ends, strict=True))


def rebuild_local_shards(
    pieces: list[torch.Tensor],
    offsets: list[list[int]],
    dtype: torch.dtype,
    device: torch.device,
    n_dims: int,
    requires_grad: bool,
    attributes: dict[str, Any],
) -> LocalShardsWrapper:
    """Unpickles a wrapper."""
    wrapper: LocalShardsWrapper = _C.make_local_shards(pieces, offsets, dtype, device, n_dims)
    wrapper.__dict__.update(attributes)
    wrapper.requires_grad_(requires_grad)
    return wrapper


if LAYERS:
    _C.set_local_shards_class(LocalShardsWrapper)
