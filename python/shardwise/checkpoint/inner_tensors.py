"""The parts that a checkpoint keeps of DTensors whose local tensors are of a class of their own."""

from typing import Any

import torch

from shardwise import _C
from shardwise._inner_tensors import contexts
from shardwise.dtensor import DTensor


def inner_tensors(state: Any) -> Any:
    """`state`, in which each DTensor of a tensor class is a dict of DTensors: the inner tensors that the class's `__tensor_flatten__` names.

        dcp.save(inner_tensors(state), checkpoint_id="folder")
        dcp.load(inner_tensors(state), checkpoint_id="folder")    # fills the objects in `state`

    An inner tensor is sharded where the class's own slice cuts it, and replicated where the slice leaves it whole. They share the memory of the
    objects, so that a load fills those, under any placements. The class's context, as a scale that is a number, is not loaded: it stands in a name of the
    checkpoint, and a load into objects of another one is DCP's error for a missing name. Dicts, lists and tuples are looked through. All other values stay,
    as do DTensors whose class has DCP's own methods (`__create_write_items__`).

    Collective over the meshes. Raises NotImplementedError for a class that takes no slice or has no `__tensor_flatten__`, and ValueError if ranks differ
    in an inner tensor that a slice leaves whole or in how a slice cuts one, or for a Partial.

    >>> from shardwise.checkpoint import inner_tensors
    >>> x = sw.ones(4, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> inner_tensors({"x": x})["x"] is x  # its local tensor is a plain one
    True
    """
    if isinstance(state, dict):
        return {key: inner_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(inner_tensors, state))
    own = _C.subclass_in(state) if isinstance(state, DTensor) else None
    if own is None or hasattr(own, "__create_write_items__"):
        return state
    state._saved_boxes()  # the error for terms of a sum
    # A load with another context asks for a name that the checkpoint does not have.
    return {**dict(_C.inner_tensors(state)), f"context={contexts(own)!r}": torch.zeros(())}
