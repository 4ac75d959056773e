"""Converts torch's meshes to ours, and finds the mesh of the innermost `with` block."""

from itertools import combinations
from typing import Any

from torch.distributed import device_mesh as torch_device_mesh
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise.device_mesh import DeviceMesh


def mesh_from_torch(mesh: object) -> DeviceMesh:
    """Our mesh of the same ranks. Collective over the world if groups are new."""
    mesh = getattr(mesh, "real_obj", mesh)  # a tracer's stand-in has the mesh in it
    if isinstance(mesh, DeviceMesh):
        return mesh
    if not isinstance(mesh, TorchDeviceMesh):
        raise TypeError(
            f"[device_mesh] {mesh!r} is no mesh. Pass a shardwise.DeviceMesh or a torch.distributed.device_mesh.DeviceMesh."
        )
    names = mesh.mesh_dim_names
    root = mesh._get_root_mesh()
    if root is mesh or root.mesh_dim_names is None or names is None:
        return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names)
    if set(names) <= set(root.mesh_dim_names):
        return mesh_from_torch(root)[names]
    part = _slice_of_same_ranks(mesh, root)
    if part is None:  # its dims are parts of the root's, or in another order
        theirs: Any = mesh
        return _C.mesh_among(mesh.device_type, theirs._layout.remap_to_tensor(theirs._rank_map), names)
    if mesh.ndim == 1:
        return part._as_line(names[0])
    return DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names, _is_by_all=False)


def current_torch_mesh() -> TorchDeviceMesh | None:
    """The mesh of the innermost `with` block; None outside of such blocks."""
    stack = torch_device_mesh._mesh_resources.mesh_stack
    return stack[-1] if stack else None


def _slice_of_same_ranks(mesh: TorchDeviceMesh, root: TorchDeviceMesh) -> DeviceMesh | None:
    """Makes the groups of `mesh` and of its siblings, as every rank must, by slicing `root` to the same ranks. Returns the slice if its ranks are in
    the order of `mesh`, else None."""
    ours, ranks = mesh_from_torch(root), mesh.mesh.flatten().tolist()
    for n_dims in range(1, root.ndim + 1):
        for names in combinations(root.mesh_dim_names or (), n_dims):
            own = ours[names].mesh.flatten().tolist()
            if set(own) == set(ranks):
                return ours[names] if own == ranks else None
    return None
