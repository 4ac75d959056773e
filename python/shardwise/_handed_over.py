"""Hands C++ the functions of this package that it calls, so that it looks up no module by name, and completes its classes."""

import os
from functools import partialmethod
from typing import NoReturn

from shardwise import _C, _inner_tensors, _symbols, _torch_groups
from shardwise.device_mesh import DeviceMesh
from shardwise.interop import replacements, torch_tensors


def hand_over() -> None:
    """Called once, before the first mesh is made."""
    _C.set_package(
        folder=os.path.dirname(__file__),
        install=replacements.install,
        default_group=_torch_groups.default_group,
        new_group=_torch_groups.new_group,
        group_by_members=_torch_groups.group_by_members,
        members_make_groups=_torch_groups.members_make_groups,
        lone_group=_torch_groups.lone_group,
        group_of=_torch_groups.group_of,
        ranks_of=_torch_groups.ranks_of,
        mesh_of=DeviceMesh._of,
        mesh_from_torch=torch_tensors.mesh_from_torch,
        current_torch_mesh=torch_tensors.current_torch_mesh,
        as_local=torch_tensors.as_local,
        as_piece=torch_tensors.as_piece,
        as_whole=torch_tensors.as_whole,
        strided_shard=torch_tensors.strided_shard,
        flatten=_inner_tensors.flatten,
        unflatten=_inner_tensors.unflatten,
        have_same_context=_inner_tensors.have_same_context,
        says_places=_inner_tensors.says_places,
        holds_traced=_inner_tensors.holds_traced,
        symbol_values=_symbols.values_of,
        fix_symbols=_symbols.fixed,
        without_symbols=_symbols.with_numbers,
        evaluate_symbols=_symbols.evaluated,
    )


def give_texts_a_hash() -> None:
    """Makes each class's __repr__ one that has a hash. pprint, with which torch.compile's log prints a graph's metadata, looks its printer up by the
    class's __repr__, and pybind11's kind of method has none."""
    for cls in vars(_C).values():
        text = vars(cls).get("__repr__") if isinstance(cls, type) else None
        if text is not None and text.__hash__ is None:
            cls.__repr__ = partialmethod(text)


def refuse(name: str) -> NoReturn:
    """The `__getattr__` of modules in a build of the core alone, which lacks names."""
    raise AttributeError(
        f"[shardwise] there is no {name} in this build, which has the core alone. The layers above it (tables, pictures, parallel styles, "
        "fully_shard) are in a build with -DSHARDWISE_LAYERS=ON, the default.",
        name=name,
    )
