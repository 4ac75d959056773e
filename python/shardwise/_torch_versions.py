"""One name for each difference between the versions of torch that Shardwise runs with (2.11 to 2.15). For C++: runtime/comm/torch_versions.h."""

import contextlib
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._library import opaque_object
from torch._library.opaque_object import MemberType
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed._mesh_layout import _MeshLayout

MeshLayout: Any = _MeshLayout  # torch 2.11 makes it of sizes and strides, newer ones of a list of dims

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def uses_torchcomms() -> bool:
    """Whether process groups are made by torchcomms, which older versions of torch do not know."""
    return bool(getattr(distributed_c10d, "_use_torchcomms_enabled", lambda: False)())


def register_constant(kind: type) -> None:
    """Makes values of this class constants of graphs: a tracer uses their methods and attributes as they are.

    torch 2.11 requires a metaclass that C++ classes do not have. There, a graph breaks where the program uses such a value.
    """
    members = {name: MemberType.USE_REAL for name in dir(kind) if not name.startswith("__")}
    members["__eq__"] = MemberType.USE_REAL
    if hasattr(opaque_object, "register_custom_class"):  # torch 2.14: new names; the old ones log warnings
        opaque_object.register_custom_class(kind, typ="constant", members=members)
    else:
        with contextlib.suppress(TypeError):
            opaque_object.register_opaque_type(kind, typ="value", members=members)


def register_mesh(kind: type, parent: type, inlined: Sequence[str]) -> None:
    """Lets graphs use all members of a class of meshes derived from `parent`, torch's own. A tracer calls the members on the real mesh, and looks
    into those `inlined`, which return meshes or groups. torch 2.11 knows no such classes: there, a graph breaks at the member."""
    register_theirs: Any = getattr(device_mesh, "_register_distributed_opaque_types", None)
    if register_theirs is None:
        return
    register_theirs()
    theirs: Any = opaque_object.get_opaque_obj_info(parent)
    public = (name for name in dir(kind) if not name.startswith("__"))
    members = dict.fromkeys(public, MemberType.USE_REAL) | dict.fromkeys(inlined, MemberType.INLINED)
    register: Any = getattr(opaque_object, "register_custom_class", None) or opaque_object.register_opaque_type
    register(
        kind,
        typ=theirs.opaque_typ,
        guard_fn=theirs.guard_fn,
        members=theirs.members | members,
        reconstruct_fn=theirs.reconstruct_fn,
    )


def mesh_layout(shape: Sequence[int]) -> Any:
    """torch's layout of a mesh of this shape with ranks in row-major order."""
    if hasattr(MeshLayout, "from_sizes_strides"):
        return MeshLayout.from_sizes_strides(tuple(shape))
    return MeshLayout(tuple(shape), tuple(prod(shape[dim + 1 :]) for dim in range(len(shape))))


def layout_of_dims(layout: Any, groups: Sequence[Sequence[int]]) -> Any:
    """torch's layout of a part of a mesh. Each dim of the part merges the dims of one group."""
    if hasattr(MeshLayout, "from_sizes_strides"):
        return MeshLayout([MeshLayout([layout[dim] for dim in dims]).collapse() for dims in groups])
    merged = [
        MeshLayout(tuple(layout[dim].shape for dim in dims), tuple(layout[dim].stride for dim in dims)).coalesce()
        for dims in groups
    ]
    return MeshLayout(tuple(each.shape for each in merged), tuple(each.stride for each in merged))
