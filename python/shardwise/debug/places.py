"""The layouts of a tensor of any kind, and of the tensors of a module and its optimizer, found without sending anything; and this rank's memory."""

import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise._C import Layout
from shardwise.dtensor import DTensor
from shardwise.interop.torch_tensors import check_strided, from_torch, is_local_shards, is_torch_dtensor, shards_of


@dataclass
class Place:
    layout: Layout | DTensor
    dtype: torch.dtype
    dim_names: list[str] = field(default_factory=list)  # of the mesh, if the layout does not know them


def own_rank() -> int:
    """The rank of this process, or of this thread if ranks are threads; 0 if no ranks have been started."""
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return _C.world_rank() or (torch.distributed.get_rank() if has_group else 0)


Pieces = list[tuple[list[int], list[int]]]


def pieces_of(wrapper: Any) -> Pieces:
    """Offsets and sizes of this rank's pieces in a LocalShardsWrapper, ours or torch's."""
    return [(offsets, list(shard.shape)) for offsets, shard in shards_of(wrapper)]


def place_of(value: Any, dtype: torch.dtype | None) -> Place:
    """The place of a DTensor, ours or torch's, or of a Layout, whose elements have `dtype`. Raises TypeError for other values, and as place_on().

    A torch DTensor over a LocalShardsWrapper is converted, because its placements do not say where the pieces are. That may be collective.
    """
    if isinstance(value, DTensor):
        return Place(value, value.dtype)
    if isinstance(value, Layout):
        return Place(value, dtype or torch.float32)
    if is_torch_dtensor(value):
        if is_local_shards(value.to_local()):
            return Place(from_torch(value), value.dtype)
        return place_on(value.device_mesh, value.shape, value.placements, value.dtype)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, nn.Module):
        raise TypeError(
            f"[picture] {kind} is a module: only the layouts of a tensor can be compared. Give one of its parameters."
        )
    raise TypeError(
        f"[picture] {kind} has no layout: a picture shows a DTensor, a Layout, a DeviceMesh, a module or a Plan. {_way_out(value)}."
    )


def _way_out(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        make = "DTensor.from_local" if is_local_shards(value) else "distribute_tensor"
        return f"Make a DTensor of it with {make}(value, mesh, placements)"
    if isinstance(value, torch.optim.Optimizer):
        return "Give its module, too: visualize_sharding(module, optimizer=optimizer)"
    return "Give one of these"


def place_on(mesh: TorchDeviceMesh, shape: Sequence[int], placements: Any, dtype: torch.dtype) -> Place:
    """The place of a tensor on one of torch's meshes. Raises ValueError for a _StridedShard that does not split evenly."""
    check_strided("picture", shape, mesh, placements)
    layout = Layout(tuple(shape), mesh.mesh, placements)
    return Place(layout, dtype, _dim_names(layout, mesh))


def _dim_names(layout: Layout, mesh: TorchDeviceMesh) -> list[str]:
    """Labels of the layout's mesh dims: the names, or "1st: tp", "2nd: dp" if the layout has the dims in another order, that of the splits."""
    ranks = torch.tensor(layout.ranks).view(layout.mesh_shape)
    order = next(each for each in permutations(range(mesh.ndim)) if torch.equal(mesh.mesh.permute(each), ranks))
    names = list(mesh.mesh_dim_names or ())
    if list(order) == sorted(order):
        return names
    endings = ("st", "nd", "rd")
    return [
        f"{k + 1}{endings[k] if k < len(endings) else 'th'}: {names[dim] if names else f'dim {dim}'}"
        for k, dim in enumerate(order)
    ]


Listed = tuple[str, list[int], str, int, "Layout | DTensor | Pieces | None"]


def listed_tensors(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[Listed]:
    """Name, shape, dtype, bytes of an element and layout of each parameter, its optimizer state, and each buffer. A shared tensor is listed once,
    under all its names. A LocalShardsWrapper has this rank's shards instead of a layout."""
    listed: list[Listed] = []
    names: dict[int, list[str]] = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
    states = dict(_states(optimizer)) if optimizer is not None else {}
    for name, parameter in module.named_parameters():
        listed.append(_listed(_name_of(names[id(parameter)]), parameter))
        listed.extend(_listed(f"{name}: {key}", value) for key, value in states.pop(id(parameter), []))
    listed.extend(_listed(_name_of(names[id(buffer)]), buffer) for _, buffer in module.named_buffers())
    for number, others in enumerate(states.values()):
        listed.extend(_listed(f"parameter {number} of no module: {key}", value) for key, value in others)
    return listed


def _name_of(names: list[str]) -> str:
    """The label of a tensor with these names: "embedding.weight = head.weight" if modules share it."""
    return " = ".join(names[:2]) + (f" = {len(names) - 2} more" if len(names) > 2 else "")


def _states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, list[tuple[str, torch.Tensor]]]]:
    """The tensors that the optimizer keeps, by the id of their parameter."""
    for parameter, state in optimizer.state.items():
        if isinstance(state, Mapping):  # some optimizers also keep numbers of their own there
            yield id(parameter), [(key, value) for key, value in state.items() if isinstance(value, torch.Tensor)]


def _listed(name: str, tensor: Any) -> Listed:
    place: Layout | DTensor | Pieces | None = None
    if isinstance(tensor, DTensor) or is_torch_dtensor(tensor):
        place = place_of(tensor, None).layout
    elif is_local_shards(tensor):
        place = pieces_of(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.") + (" on meta" if tensor.is_meta else "")
    return name, list(tensor.shape), dtype, tensor.dtype.itemsize, place


def peak_of_process() -> int:
    """The most bytes that were in memory at one time so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def local_tensors(value: object) -> Iterator[torch.Tensor]:
    """This rank's parts of a tensor; for a sparse one their values and indices. None for other values."""
    if not isinstance(value, torch.Tensor):
        return
    if isinstance(value, DTensor):
        pieces = _C.to_pieces(value.detach())
    else:
        pieces = [value.to_local() if is_torch_dtensor(value) else value]  # type: ignore[attr-defined]
    for piece in pieces:
        yield from (piece._values(), piece._indices()) if piece.is_sparse else (piece,)
