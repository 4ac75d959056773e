"""DTensorSpec: all of a DTensor but its values, with the names of torch.distributed.tensor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch

from shardwise import placement_types
from shardwise.device_mesh import DeviceMesh
from shardwise.placement_types import Partial, Placement, Replicate, Shard


class TensorMeta(NamedTuple):
    """The whole tensor's shape and strides (elements) and its dtype."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class ShardOrderEntry(NamedTuple):
    """The mesh dims that split a tensor dim, the first one first."""

    tensor_dim: int
    mesh_dims: tuple[int, ...]


ShardOrder = tuple[ShardOrderEntry, ...]


@dataclass(eq=True)
class DTensorSpec:
    """How a tensor is distributed. `DTensor(local, spec)` makes a DTensor of it; `DTensor._spec` returns it."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    tensor_meta: TensorMeta | None = None

    def __post_init__(self) -> None:
        self.placements = tuple(self.placements)

    def __hash__(self) -> int:
        meta = self.tensor_meta and (
            tuple(self.tensor_meta.shape),
            tuple(self.tensor_meta.stride),
            self.tensor_meta.dtype,
        )
        return hash((self.mesh, self.placements, meta))

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
        """The number of parts of the tensor, over all mesh dims."""
        return prod(self.mesh.size(mesh_dim) for mesh_dim, _ in _splits(self.placements))

    @property
    def num_shards_map(self) -> list[int]:
        """The number of parts of each tensor dim."""
        result = [1] * self.ndim
        for mesh_dim, dim in _splits(self.placements):
            result[dim] *= self.mesh.size(mesh_dim)
        return result

    @property
    def dim_map(self) -> list[int]:
        """The mesh dim that shards each tensor dim, or -1. Raises ValueError if several mesh dims shard one tensor dim."""
        result = [-1] * self.ndim
        for mesh_dim, dim in _splits(self.placements):
            if result[dim] >= 0:
                raise ValueError(
                    f"[DTensorSpec] dim_map has one mesh dim per tensor dim, and {list(self.placements)} shard dim "
                    f"{dim} twice. Read placements."
                )
            result[dim] = mesh_dim
        return result

    @property
    def sums(self) -> list[int]:
        """The mesh dims that are Partial."""
        return [dim for dim, placement in enumerate(self.placements) if placement.is_partial()]

    @property
    def shard_order(self) -> ShardOrder | None:
        """The mesh dims that split each tensor dim, in order; None if a _StridedShard stands for no order. Assigning an order
        replaces the placements of the mesh dims that it names."""
        order: dict[int, list[int]] = {}
        for mesh_dim, dim in reversed(_splits(self.placements)):
            later, factor = order.setdefault(dim, []), getattr(self.placements[mesh_dim], "split_factor", 1)
            place = next((i for i in range(len(later) + 1) if self._n_ranks(later[:i]) == factor), None)
            if place is None:
                return None
            later.insert(place, mesh_dim)
        return _entries(order)

    @shard_order.setter
    def shard_order(self, order: ShardOrder) -> None:
        placements = list(self.placements)
        for dim, mesh_dims in order:
            for i, mesh_dim in enumerate(mesh_dims):
                factor = self._n_ranks(each for each in mesh_dims[:i] if each > mesh_dim)
                placements[mesh_dim] = (
                    Shard(dim) if factor == 1 else placement_types._StridedShard(dim, split_factor=factor)
                )
        self.placements = tuple(placements)

    @staticmethod
    def compute_default_shard_order(placements: Iterable[Placement]) -> ShardOrder:
        """The order of a tensor with these placements if each tensor dim is split by its mesh dims in ascending order."""
        order: dict[int, list[int]] = {}
        for mesh_dim, dim in _splits(placements):
            order.setdefault(dim, []).append(mesh_dim)
        return _entries(order)

    @staticmethod
    def format_shard_order_str(placements: Iterable[Placement], shard_order: ShardOrder | None = None) -> str:
        """The placements in short: "RS(1)", or "S(1)[1]S(1)[0]" with the places in the order of mesh dims that split one tensor dim."""
        splits = [mesh_dims for _, mesh_dims in shard_order or () if len(mesh_dims) > 1]
        places = {mesh_dim: f"[{i}]" for mesh_dims in splits for i, mesh_dim in enumerate(mesh_dims)}
        return "".join(f"{_short(each)}{places.get(mesh_dim, '')}" for mesh_dim, each in enumerate(placements))

    @staticmethod
    def is_default_device_order(shard_order: ShardOrder | None) -> bool:
        """Whether each tensor dim is split in the order of mesh dims."""
        return shard_order is not None and all(list(dims) == sorted(dims) for _, dims in shard_order)

    def is_replicated(self) -> bool:
        return all(placement.is_replicate() for placement in self.placements)

    def is_sharded(self) -> bool:
        return bool(_splits(self.placements))

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

    def _n_ranks(self, mesh_dims: Iterable[int]) -> int:
        return prod(self.mesh.size(mesh_dim) for mesh_dim in mesh_dims)

    def _meta(self) -> TensorMeta:
        if self.tensor_meta is None:
            raise ValueError("[DTensorSpec] this spec has no tensor_meta. Give TensorMeta(shape, stride, dtype).")
        return self.tensor_meta


def _splits(placements: Iterable[Placement]) -> list[tuple[int, int]]:
    """The mesh dims of Shards and of torch's _StridedShards, each with the tensor dim that it splits."""
    return [(mesh_dim, each.dim) for mesh_dim, each in enumerate(placements) if hasattr(each, "dim")]


def _entries(order: dict[int, list[int]]) -> ShardOrder:
    return tuple(ShardOrderEntry(dim, tuple(mesh_dims)) for dim, mesh_dims in sorted(order.items()))


def _short(placement: Placement) -> str:
    if placement.is_replicate():
        return "R"
    dim, reduce_op = getattr(placement, "dim", None), getattr(placement, "reduce_op", None)
    return f"S({dim})" if dim is not None else f"P({reduce_op})" if reduce_op else str(placement)
