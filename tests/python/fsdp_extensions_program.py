"""Run by test_fully_shard_extensions.py under torchrun: torch's fully_shard and Shardwise's train the same models, of the same classes."""

import torch
import torch.distributed as dist
from extension_classes import Padded, Quantised, Stack, of_class, plain_values, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import shardwise as sw


def trained(cls, rows, shard, mesh, policy, reshard):
    model = Stack(of_class(cls), rows, last=6 if cls is Quantised else 5)
    for block in model.blocks:
        shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    n_ranks, rank = dist.get_world_size(), dist.get_rank()
    losses = train(model, lambda x: x.chunk(n_ranks)[rank])
    values = {}
    for name, parameter in model.named_parameters():
        values[name] = plain_values(parameter.to_local().detach())
        if parameter.grad is not None:
            values[name + ".grad"] = parameter.grad.to_local()
    return losses, values


def main():
    dist.init_process_group("gloo")
    n_ranks = dist.get_world_size()
    theirs, ours = init_device_mesh("cpu", (n_ranks,)), sw.init_device_mesh("cpu", (n_ranks,))
    for cls, rows in ((Padded, 12), (Padded, 10), (Quantised, 12)):
        if cls is Quantised and n_ranks == 3:
            continue  # weights of 2 rows: torch wants even parts of a class that does not fill them up
        for dtype in (None, torch.bfloat16):
            for reshard in (True, False):
                policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
                expected = trained(cls, rows, fully_shard, theirs, policy, reshard)
                own = trained(cls, rows, sw.fsdp.fully_shard, ours, policy, reshard)
                torch.testing.assert_close(own, expected, rtol=2e-2 if dtype else 1e-5, atol=2e-3 if dtype else 1e-6)
    if dist.get_rank() == 0:
        print("the same")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
