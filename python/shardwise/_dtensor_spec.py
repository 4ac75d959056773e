"""What a DTensor is besides its values: its mesh, its placements and the whole tensor's shape, strides and dtype."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from shardwise.device_mesh import DeviceMesh
from shardwise.placement_types import Partial, Placement, Replicate, Shard


class TensorMeta(NamedTuple):
    """The whole tensor's shape and strides (elements) and its dtype."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(eq=True)
class DTensorSpec:
    """How a tensor is distributed: `DTensor(local, spec)` makes one of it, `DTensor._spec` tells it."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    tensor_meta: TensorMeta | None = None

    def __post_init__(self) -> None:
        self.placements = tuple(self.placements)

    def __hash__(self) -> int:
        return hash((self.mesh, self.placements, self.tensor_meta and tuple(map(_hashable, self.tensor_meta))))

    @property
    def device_mesh(self) -> DeviceMesh:
        return self.mesh

    @property
    def shape(self) -> torch.Size:
        return self._meta().shape

    @property
    def stride(self) -> tuple[int, ...]:
        return self._meta().stride

    @property
    def ndim(self) -> int:
        return len(self._meta().shape)

    @property
    def num_shards(self) -> int:
        """Into how many parts the tensor is split, over all mesh dims."""
        counts = [
            self.mesh.size(dim) for dim, placement in enumerate(self.placements) if _sharded(placement) is not None
        ]
        return int(torch.Size(counts).numel())

    @property
    def num_shards_map(self) -> list[int]:
        """Into how many parts each tensor dim is split."""
        result = [1] * self.ndim
        for dim, placement in enumerate(self.placements):
            sharded = _sharded(placement)
            if sharded is not None:
                result[sharded] *= self.mesh.size(dim)
        return result

    @property
    def dim_map(self) -> list[int]:
        """The mesh dim that shards each tensor dim, -1 where none does. Raises ValueError where several do."""
        result = [-1] * self.ndim
        for dim, placement in enumerate(self.placements):
            sharded = _sharded(placement)
            if sharded is not None:
                if result[sharded] >= 0:
                    raise ValueError(
                        f"[DTensorSpec] dim_map has one mesh dim per tensor dim, and {list(self.placements)} shard dim "
                        f"{sharded} twice. Read placements."
                    )
                result[sharded] = dim
        return result

    @property
    def sums(self) -> list[int]:
        """The mesh dims that are Partial."""
        return [dim for dim, placement in enumerate(self.placements) if placement.is_partial()]

    def is_replicated(self) -> bool:
        return all(placement.is_replicate() for placement in self.placements)

    def is_sharded(self) -> bool:
        return any(_sharded(placement) is not None for placement in self.placements)

    def shallow_copy_with_tensor_meta(self, tensor_meta: TensorMeta | None) -> "DTensorSpec":
        return replace(self, tensor_meta=tensor_meta)

    @classmethod
    def from_dim_map(
        cls, mesh: DeviceMesh, dim_map: Sequence[int], sums: Sequence[int], tensor_meta: TensorMeta | None = None
    ) -> "DTensorSpec":
        """The reverse of dim_map and sums. Raises ValueError for a mesh dim that is named twice."""
        placements: list[Placement] = [Replicate()] * mesh.ndim
        named = [*sums, *(mesh_dim for mesh_dim in dim_map if mesh_dim >= 0)]
        if len(set(named)) < len(named):
            raise ValueError(
                f"[DTensorSpec] dim_map {list(dim_map)} and sums {list(sums)} name a mesh dim twice. Name "
                "each once: it shards one tensor dim or is a sum."
            )
        for mesh_dim in sums:
            placements[mesh_dim] = Partial()
        for dim, mesh_dim in enumerate(dim_map):
            if mesh_dim >= 0:
                placements[mesh_dim] = Shard(dim)
        return cls(mesh, tuple(placements), tensor_meta)

    def _meta(self) -> TensorMeta:
        if self.tensor_meta is None:
            raise ValueError("[DTensorSpec] this spec has no tensor_meta. Give TensorMeta(shape, stride, dtype).")
        return self.tensor_meta


def _sharded(placement: Placement) -> int | None:
    """The tensor dim that a Shard, or torch's _StridedShard, splits."""
    dim: int | None = getattr(placement, "dim", None)
    return dim


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, (list, torch.Size)) else value
