"""The meshes that all ranks made together. A pickled mesh names those that are to be made when it is read: the same ones on every rank."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import torch

from shardwise import _C

MeshKey: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]  # shape, ranks, names


class Family(NamedTuple):
    """All slices of a mesh, the root, along some of its dims; each rank has the slice that it is in.

    `dims`: for each dim of the slices, the dims of the root that it consists of. None: the family is the root alone.
    """

    device_type: str
    root: MeshKey
    names: tuple[str, ...] = ()
    dims: tuple[tuple[str, ...], ...] | None = None

    def root_ranks(self) -> torch.Tensor:
        shape, ranks, _ = self.root
        return torch.tensor(ranks, dtype=torch.int32, device="cpu").view(shape)

    def members(self) -> frozenset[MeshKey]:
        if self.dims is None:
            return frozenset([self.root])
        shape, _, names = self.root
        slice_shape = tuple(prod(shape[names.index(dim)] for dim in each) for each in self.dims)
        rows = slices(self.root_ranks(), names, self.dims).flatten(1).tolist()
        return frozenset((slice_shape, tuple(row), self.names) for row in rows)


def slices(root: torch.Tensor, root_names: Sequence[str], dims: Sequence[Sequence[str]]) -> torch.Tensor:
    """The ranks of all slices of `root` along `dims`, one after another."""
    kept = [root_names.index(dim) for each in dims for dim in each]
    shape = [prod(root.size(root_names.index(dim)) for dim in each) for each in dims]
    return root.movedim(kept, list(range(-len(kept), 0))).reshape(-1, *shape)


def note(mesh: _C.DeviceMesh, family: Family) -> None:
    """Notes that all ranks of the world of `mesh` made the meshes of `family`."""
    families = mesh._world_notes()
    if family not in families:
        families[family] = family.members()


def related(mesh: _C.DeviceMesh, key: MeshKey) -> list[Family]:
    """The families that contain the mesh, the families that contain another member of these, and so on, in the order in which they were made.

    The result is the same on all ranks, even if one rank's slice was also made as a mesh of its own and another rank's was not.
    """
    families = _noted(mesh)
    if not any(key in members for members in families.values()):
        _note_as_slice(mesh, key)
        families = _noted(mesh)
    found: set[Family] = set()
    known = {key}
    while more := [family for family in families if family not in found and not families[family].isdisjoint(known)]:
        found.update(more)
        known.update(*(families[family] for family in more))
    return [family for family in families if family in found]


def root_key(mesh: _C.DeviceMesh, keys: Sequence[MeshKey], first: MeshKey) -> MeshKey | None:
    """The mesh that has all these meshes as slices along dims of their names: `first`, or the mesh that was made first. None if there is none, and for
    meshes without names."""
    roots = [first, *(family.root for family in _noted(mesh))]
    if not all(names for _, _, names in keys):
        return None
    wanted = {name for _, _, names in keys for name in names}
    for root in dict.fromkeys(root for root in roots if wanted <= set(root[2])):
        of_names = [Family(mesh.device_type, root, names, tuple((name,) for name in names)) for _, _, names in keys]
        if all(key in family.members() for key, family in zip(keys, of_names, strict=True)):
            return root
    return None


def _noted(mesh: _C.DeviceMesh) -> dict[Family, frozenset[MeshKey]]:
    families = list(mesh._world_notes().items())  # a copy: other threads may make meshes meanwhile
    return {family: members for family, members in families if family.device_type == mesh.device_type}


def _note_as_slice(mesh: _C.DeviceMesh, key: MeshKey) -> None:
    """Notes the family of a slice that C++ made, for example for parameters that are sharded over data on top of tensor parallelism."""
    names = key[2]
    for known in _noted(mesh):
        if known.dims is None and names and set(names) <= set(known.root[2]):
            family = Family(known.device_type, known.root, names, tuple((name,) for name in names))
            if key in family.members():
                note(mesh, family)
                return
