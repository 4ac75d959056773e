"""Makes the values of replicated parameters equal on all ranks."""

import torch
import torch.distributed as dist
from torch import nn

from shardwise.dtensor import DTensor
from shardwise.placement_types import Replicate


@torch.no_grad()
def broadcast_parameters(module: nn.Module, src: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Copies replicated parameters and buffers from rank `src` to all ranks of `group`.

    Plain tensors, and DTensors that are replicated on all of these ranks, are sent; tensors of the same dtype and device share a message.
    Other DTensors are not changed. Collective over `group` (default: the default group); ranks outside it do nothing. Cost: a copy of
    the tensors that are sent.

    >>> layer = torch.nn.Linear(2, 2)  # its values are those of rank 0 afterwards
    >>> sw.broadcast_parameters(layer)
    """
    if dist.get_rank(group) < 0:
        return
    ranks = set(dist.get_process_group_ranks(group))
    parts: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if isinstance(tensor, DTensor):
            is_replicated = all(isinstance(placement, Replicate) for placement in tensor.placements)
            if not is_replicated or not set(tensor.device_mesh.mesh.flatten().tolist()) >= ranks:
                continue
            tensor = tensor.to_local()
        parts.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for tensors in parts.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.broadcast(flat, src, group)
        for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))
