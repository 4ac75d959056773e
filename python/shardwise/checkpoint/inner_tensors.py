"""The inner tensors of DTensors whose local tensors have a class of their own, for checkpoints."""

import re
from typing import Any

import torch

from shardwise import _C
from shardwise._inner_tensors import contexts
from shardwise.dtensor import DTensor


def inner_tensors(state: Any) -> Any:
    """`state`, in which each DTensor of a tensor class is a dict of DTensors: the inner tensors that the class's `__tensor_flatten__` names.

        dcp.save(inner_tensors(state), checkpoint_id="folder")
        dcp.load(inner_tensors(state), checkpoint_id="folder")    # fills the objects in `state`

    An inner tensor is sharded if the class's own slice cuts it, and replicated if the slice leaves it whole. Inner tensors share the memory of the
    objects, so that a load fills these, under any placements. The class's context, such as a scale that is a number, is not loaded: it is part of a
    name in the checkpoint, and a load into objects with another context raises DCP's error for a missing name. Dicts, lists and tuples are
    searched. All other values stay, and so do DTensors whose class has DCP's own methods (`__create_write_items__`).

    Collective over the meshes. Raises NotImplementedError for a class that takes no slice or has no `__tensor_flatten__`, and ValueError for a
    Partial, or if ranks differ in an inner tensor that a slice leaves whole or in how a slice cuts one.

    >>> from shardwise.checkpoint import inner_tensors
    >>> x = sw.ones(4, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> inner_tensors({"x": x})["x"] is x  # its local tensor is a plain one
    True
    """
    if isinstance(state, dict):
        return {key: inner_tensors(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        values = [inner_tensors(value) for value in state]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    own = _C.subclass_in(state) if isinstance(state, DTensor) else None
    if own is None or hasattr(own, "__create_write_items__"):
        return state
    state._saved_boxes()  # raises the error for Partial tensors
    context = repr(contexts(own))
    if re.search(r" at 0x[0-9a-f]+>", context):
        raise TypeError(
            f"[checkpoint] the text of the context of a {type(own).__name__} has an address in memory, which differs between processes. Give the "
            "objects in the context a __repr__ of their values."
        )
    return {**dict(_C.inner_tensors(state)), f"context={context}": torch.zeros(())}
