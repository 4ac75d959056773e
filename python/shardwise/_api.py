"""The names of torch.distributed.tensor._api that shardwise itself does not have."""

from collections.abc import Sequence

import torch

from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor, distribute_tensor
from shardwise.placement_types import Placement


def _shard_tensor(
    full_tensor: torch.Tensor, placements: Sequence[Placement], device_mesh: DeviceMesh | None = None
) -> DTensor:
    """distribute_tensor() of a tensor that every rank has: nothing is sent."""
    return distribute_tensor(full_tensor, device_mesh, placements, src_data_rank=None)
