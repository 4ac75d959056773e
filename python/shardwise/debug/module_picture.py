"""The tensors of a module and of its optimizer, as a picture lists them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from shardwise._C import Layout
from shardwise.debug.places import Pieces, pieces_of, place_of
from shardwise.dtensor import DTensor
from shardwise.interop.torch_tensors import is_local_shards, is_torch_dtensor

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
