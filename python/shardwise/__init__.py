"""Distributed tensors: one logical tensor whose pieces live on the ranks of a device mesh.

The names and signatures are those of torch.distributed.tensor.
"""

from shardwise._C import EnumerableShard, Partial, Placement, Replicate, Shard, ShardMetadata
from shardwise.device_mesh import DeviceMesh, init_device_mesh
from shardwise.dtensor import DTensor, distribute_tensor

__all__ = [
    "DTensor",
    "DeviceMesh",
    "EnumerableShard",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "ShardMetadata",
    "distribute_tensor",
    "init_device_mesh",
]
