"""Meshes: ranks in an n-D grid."""

from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise._C import DeviceMesh

__all__ = ["DeviceMesh", "init_device_mesh"]


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
) -> DeviceMesh:
    """The mesh of ranks 0, 1, 2, ... in row-major order. Collective over the world.

    Under torchrun it initialises torch.distributed where nobody did. Raises ValueError where the world has fewer ranks.
    """
    ranks = torch.arange(prod(mesh_shape)).view(tuple(mesh_shape))
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names)


def rebuild_mesh(device_type: str, mesh: torch.Tensor, mesh_dim_names: list[str]) -> DeviceMesh:
    """Unpickles a mesh: the same grid in the current world."""
    return DeviceMesh(device_type, mesh, mesh_dim_names=tuple(mesh_dim_names) or None)


def from_torch(mesh: object) -> DeviceMesh:
    """Our mesh of the same ranks. Collective over the world where groups are new."""
    if not isinstance(mesh, TorchDeviceMesh):
        raise TypeError(
            f"[device_mesh] {mesh!r} is no mesh. Pass a shardwise.DeviceMesh or a torch.distributed.device_mesh.DeviceMesh."
        )
    root = mesh._get_root_mesh()
    if root is mesh:
        return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    assert mesh.mesh_dim_names is not None
    return from_torch(root)[mesh.mesh_dim_names]
