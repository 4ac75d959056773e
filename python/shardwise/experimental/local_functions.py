"""Plain functions on pieces of distributed tensors."""

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from shardwise import _C
from shardwise._utils import on_all_ranks
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement, Shard

Placements = Sequence[Placement]
Lengthy = tuple[int | DTensor, int]  # the number of a result, or an argument; and one of its dims


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Placements | tuple[Placements | None, ...] | None = None,
    in_placements: tuple[Placements | None, ...] | None = None,
    in_grad_placements: tuple[Placements | None, ...] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """Makes a function of DTensors from `func`, which works on plain tensors and may communicate: `func` is called with each rank's pieces, and
    its results become DTensors with `out_placements`. Without `func` it is a decorator.

        @local_map(out_placements=[Partial()], in_placements=([Shard(1)], [Shard(0)]))
        def matmul(a, b): return a @ b

    - `out_placements`: the placements of the result, or a tuple of those of several results, in pytree order; None for a result that is not
      a tensor.
    - `in_placements`: the placements that each positional argument must have, in pytree order; None for one that is not a DTensor. Without
      `in_placements` nothing is checked.
    - `in_grad_placements`: the placements of the gradients of the pieces; default: those of the arguments.
    - `device_mesh`: the mesh of the results; default: that of the first argument.
    - `redistribute_inputs`: arguments with other placements are moved first.

    If an argument is sharded unevenly, results may be uneven, too: the ranks gather their lengths, in one message of a few numbers per rank.
    A result with the lengths of an argument is sharded as that argument is. If no argument is uneven, results must have the same length on
    each rank, and nothing is sent.

    A call without DTensors calls `func` directly. Raises ValueError for arguments of other placements and for lengths that no placements
    describe; AssertionError, as torch does, if the number of placements does not fit the arguments or results.

    >>> def count(piece):
    ...     return torch.tensor([piece.numel()])
    >>> counted = sw.experimental.local_map(count, out_placements=[sw.Partial()])
    >>> counted(sw.ones(10, 3, device_mesh=mesh, placements=[sw.Shard(0)])).full_tensor()
    tensor([30])
    """
    if func is None:
        options = (out_placements, in_placements, in_grad_placements, device_mesh)
        return lambda func: local_map(func, *options, redistribute_inputs=redistribute_inputs)

    @wraps(func)
    def on_pieces(*args: Any, **kwargs: Any) -> Any:
        flat, structure = pytree.tree_flatten(args)
        required = _one_per_argument("in_placements", in_placements, flat)
        of_grads = _one_per_argument("in_grad_placements", in_grad_placements, flat)
        given: list[DTensor] = []
        pieces = []
        for value, placements, grad_placements in zip(flat, required, of_grads, strict=True):
            if not isinstance(value, DTensor):
                _check_plain("argument", "Non-Tensor input", value, placements)
                pieces.append(value)
                continue
            if in_placements is not None:
                value = _placed(value, placements, redistribute_inputs)
            if in_grad_placements is not None and grad_placements is None:
                raise AssertionError(
                    f"[local_map] an argument of shape {list(value.shape)} expects placements of its gradient, got None. Give them in "
                    "in_grad_placements."
                )
            given.append(value)
            pieces.append(value.to_local(grad_placements=grad_placements))
        given += [value for value in pytree.tree_leaves(kwargs) if isinstance(value, DTensor)]
        named = pytree.tree_map_only(DTensor, DTensor.to_local, kwargs)
        for value in given:
            _C.note_write(value)  # func may write to its pieces, on all ranks alike
        result = func(*pytree.tree_unflatten(pieces, structure), **named)
        if not given:
            return result
        return _distributed(result, out_placements, device_mesh or given[0].device_mesh, given)

    return on_pieces


def _one_per_argument(
    name: str, placements: tuple[Placements | None, ...] | None, values: list[Any]
) -> Sequence[Placements | None]:
    if placements is None:
        return [None] * len(values)
    if len(placements) != len(values):
        raise AssertionError(
            f"[local_map] {name} length {len(placements)} does not match the number of input args {len(values)}! Give one per value, and "
            "None for a value that is not a DTensor."
        )
    return placements


def _check_plain(kind: str, in_torchs_words: str, value: Any, placements: Placements | None) -> None:
    if placements is not None and not isinstance(value, torch.Tensor):
        raise AssertionError(
            f"[local_map] the {kind} {value!r} is no tensor: {in_torchs_words} expects None placements but received {placements}! "
            "Give None for it."
        )


def _placed(value: DTensor, placements: Placements | None, may_move: bool) -> DTensor:
    """The DTensor in the required placements. Raises ValueError if it would have to move and may not."""
    if placements is None:
        raise AssertionError(
            f"[local_map] the DTensor of shape {list(value.shape)} expects placements but received None! Give "
            f"{list(value.placements)}, as it is placed."
        )
    wanted = tuple(_resolved(placement, value.dim()) for placement in placements)
    if value.placements == wanted:
        return value
    if not may_move:
        raise ValueError(
            f"[local_map] an argument is placed as {list(value.placements)} and in_placements say {list(wanted)}: a mismatched "
            "placements. To move it, set redistribute_inputs=True."
        )
    return value.redistribute(placements=wanted)


def _resolved(placement: Placement, n_dims: int) -> Placement:
    """The placement with a Shard's dim counted from the first one. torch's Shard becomes ours."""
    if not placement.is_shard():
        return placement
    dim = cast(Shard, placement).dim
    return Shard(dim + n_dims if dim < 0 else dim, getattr(placement, "sizes", None))


def _distributed(result: Any, out_placements: Any, mesh: DeviceMesh, given: list[DTensor]) -> Any:
    flat, structure = pytree.tree_flatten(result)
    per_result = out_placements if isinstance(out_placements, tuple) else (out_placements,)
    if isinstance(out_placements, tuple) and out_placements and hasattr(out_placements[0], "is_shard"):
        per_result = (out_placements,)
    if len(flat) != len(per_result):
        raise AssertionError(
            f"[local_map] requires one PlacementType be provided for each output value: out_placements has {len(per_result)} and the "
            f"function returned {len(flat)}. Give one per value, and None for a value that is not a tensor."
        )
    for value, placements in zip(flat, per_result, strict=True):
        _check_plain("result", "Non-tensor output", value, placements)
        if isinstance(value, DTensor):
            raise AssertionError(
                f"[local_map] the function works on pieces, but returned a DTensor of shape {list(value.shape)}. Return a plain tensor."
            )
    resolved = [
        None if placements is None else [_resolved(placement, value.dim()) for placement in placements]
        for value, placements in zip(flat, per_result, strict=True)
    ]
    given = [argument for argument in given if argument.device_mesh == mesh]
    # The dims of each result that may be sharded unevenly, with the dims of arguments that are. The ranks gather the lengths of all these.
    uneven = [
        {dim: found for dim, along in _sharded_dims(placements or []).items() if (found := _uneven_along(along, given))}
        for placements in resolved
    ]
    own: dict[Lengthy, int] = {}
    for i, by_dim in enumerate(uneven):
        for dim, arguments in by_dim.items():
            own[i, dim] = flat[i].size(dim)
            own.update({(argument, as_dim): argument._local_tensor.size(as_dim) for argument, as_dim in arguments})
    lengths: dict[Lengthy, torch.Tensor] = {}
    if own:
        is_here = mesh.get_coordinate() is not None
        every = on_all_ranks(list(own.values()), mesh) if is_here else torch.zeros(mesh.size(), len(own))
        lengths = dict(zip(own, every.T.reshape(len(own), *mesh.shape), strict=True))
    for i, placements in enumerate(resolved):
        if placements is not None:
            shape, placements = _whole(i, flat[i], placements, mesh, uneven[i], lengths)
            flat[i] = DTensor.from_local(flat[i], mesh, placements, shape=shape)
    return pytree.tree_unflatten(flat, structure)


def _whole(
    number: int,
    value: torch.Tensor,
    placements: list[Placement],
    mesh: DeviceMesh,
    uneven: dict[int, list[tuple[DTensor, int]]],
    lengths: dict[Lengthy, torch.Tensor],
) -> tuple[list[int], list[Placement]]:
    """The whole shape of result `number`, whose piece is `value`, and its placements, with sizes for dims that are sharded unevenly."""
    shape, placements = list(value.shape), list(placements)
    for dim, mesh_dims in _sharded_dims(placements).items():
        if dim not in uneven:
            shape[dim] *= prod(mesh.size(mesh_dim) for mesh_dim in mesh_dims)
            continue
        for argument, as_dim in uneven[dim]:
            is_alike = _sharded_dims(argument.placements)[as_dim] == mesh_dims
            if is_alike and torch.equal(lengths[number, dim], lengths[argument, as_dim]):
                shape[dim] = argument.size(as_dim)
                for mesh_dim in mesh_dims:
                    placements[mesh_dim] = Shard(dim, cast(Shard, argument.placements[mesh_dim]).sizes)
                break
        else:
            shape[dim], sizes = _extents(lengths[number, dim], dim, mesh_dims)
            for mesh_dim in mesh_dims:
                placements[mesh_dim] = Shard(dim, sizes)
    return shape, placements


def _sharded_dims(placements: Placements) -> dict[int, list[int]]:
    """The mesh dims that shard each tensor dim."""
    result: dict[int, list[int]] = {}
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            result.setdefault(placement.dim, []).append(mesh_dim)
    return result


def _uneven_along(mesh_dims: list[int], given: list[DTensor]) -> list[tuple[DTensor, int]]:
    """The arguments that some of `mesh_dims` shard unevenly, each with the sharded dim. The answer is the same on all ranks."""
    found = []
    for argument in given:
        for dim, own in _sharded_dims(argument.placements).items():
            n_parts = prod(argument.device_mesh.size(mesh_dim) for mesh_dim in own)
            has_sizes = any(cast(Shard, argument.placements[mesh_dim]).sizes is not None for mesh_dim in own)
            if not set(own).isdisjoint(mesh_dims) and (has_sizes or argument.size(dim) % n_parts != 0):
                found.append((argument, dim))
    return found


def _extents(lengths: torch.Tensor, dim: int, mesh_dims: list[int]) -> tuple[int, list[int] | None]:
    """The whole length of the tensor dim that `mesh_dims` shard into pieces of these lengths, and the sizes of its shards if they are uneven."""
    n_parts = prod(lengths.size(mesh_dim) for mesh_dim in mesh_dims)
    first = int(lengths.flatten()[0])
    if (lengths == first).all():
        return first * n_parts, None
    lines = lengths.movedim(mesh_dims[0], -1).reshape(-1, lengths.size(mesh_dims[0]))
    if len(mesh_dims) > 1 or not (lines == lines[0]).all():
        raise ValueError(
            f"[local_map] the function returned pieces of {lengths.tolist()} along dim {dim}, which mesh dims {mesh_dims} shard: lengths "
            "other than an argument's may differ along one mesh dim only. Return pieces as long as an argument's, or shard that dim over "
            "one mesh dim."
        )
    return sum(lines[0].tolist()), lines[0].tolist()
