"""Fully sharded data parallelism, with the names of torch.distributed.fsdp: parameters, gradients and optimizer states are sharded over the
ranks, and each rank computes on its own part of the batch.

    mesh = sw.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)              # gathered together, one group ahead
    fully_shard(model, mesh=mesh)                  # what is left
    optimizer = torch.optim.AdamW(model.parameters())
    model(my_rows).mean().backward()               # gradients: the mean over the ranks, sharded as the parameters
"""

from shardwise.fsdp.fully_shard import fully_shard
from shardwise.fsdp.module import FSDPModule, UnshardHandle, register_fsdp_forward_method, share_comm_ctx
from shardwise.fsdp.policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

__all__ = [
    "CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "UnshardHandle", "fully_shard",
    "register_fsdp_forward_method", "share_comm_ctx",
]  # fmt: skip
