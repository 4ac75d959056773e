"""Meshes: ranks in an n-D grid."""

from collections.abc import Sequence
from itertools import combinations
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise._C import DeviceMesh, mesh_or_current, mesh_or_world

__all__ = ["DeviceMesh", "init_device_mesh", "mesh_or_current", "mesh_or_world"]


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
) -> DeviceMesh:
    """The mesh of ranks 0, 1, 2, ... in row-major order. Collective over the world.

    Under torchrun it initialises torch.distributed where nobody did. Raises ValueError where the world has fewer ranks.
    """
    ranks = torch.arange(prod(mesh_shape)).view(tuple(mesh_shape))
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names)


def rebuild_mesh(device_type: str, mesh: torch.Tensor, mesh_dim_names: list[str]) -> DeviceMesh:
    """Unpickles a mesh: the same grid in the current world."""
    return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names or None)


def from_torch(mesh: object) -> DeviceMesh:
    """Our mesh of the same ranks. Collective over the world where groups are new."""
    if not isinstance(mesh, TorchDeviceMesh):
        raise TypeError(
            f"[device_mesh] {mesh!r} is no mesh. Pass a shardwise.DeviceMesh or a torch.distributed.device_mesh.DeviceMesh."
        )
    names = mesh.mesh_dim_names
    root = mesh._get_root_mesh()
    if root is mesh or root.mesh_dim_names is None or names is None:
        return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names)
    if set(names) <= set(root.mesh_dim_names):
        return from_torch(root)[names]
    _make_groups_of_flattened(mesh, root)
    return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names)


def _make_groups_of_flattened(mesh: TorchDeviceMesh, root: TorchDeviceMesh) -> None:
    """Makes the group of `mesh` and of its siblings, as every rank must: by the slice of `root` that has the same ranks."""
    ours = from_torch(root)
    for n_dims in range(1, root.ndim + 1):
        for names in combinations(root.mesh_dim_names or (), n_dims):
            if set(ours[names].mesh.flatten().tolist()) == set(mesh.mesh.flatten().tolist()):
                return
