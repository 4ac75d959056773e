"""Run by test_torchao.py, on ranks that are processes."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torchrun import run_parts

import shardwise as sw
from shardwise import Shard
from shardwise.checkpoint import inner_tensors
from shardwise.compat import install


def optimizer(folder):
    """torchao's AdamW8bit takes torch.distributed.tensor's DTensor, which is ours under compat."""
    install()
    torch.compile = partial(torch.compile, backend="aot_eager")  # inductor would compile for minutes
    from torchao.optim import AdamW8bit
    from torchao.optim.subclass_8bit import OptimState8bit

    def trained(parameters, grads):
        optimizer = AdamW8bit(parameters, lr=1e-2)
        for step in grads:
            for parameter, grad in zip(parameters, step, strict=True):
                parameter.grad = grad
            optimizer.step()
        return optimizer

    torch.manual_seed(0)
    values = [torch.randn(64, 256), torch.randn(7)]
    grads = [[torch.randn_like(value) for value in values] for _ in range(3)]
    dense = [nn.Parameter(value.clone()) for value in values]
    of_dense = trained(dense, grads)
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))

    def shard(value):
        return sw.distribute_tensor(value, mesh, [Shard(0)])

    ours = [nn.Parameter(shard(value)) for value in values]
    of_ours = trained(ours, [[shard(grad) for grad in step] for step in grads])
    for own, expected in zip(ours, dense, strict=True):
        torch.testing.assert_close(own.detach().full_tensor(), expected.detach())
    state, expected = of_ours.state[ours[0]]["exp_avg"], of_dense.state[dense[0]]["exp_avg"]
    assert isinstance(state.to_local(), OptimState8bit)
    assert torch.equal(state.full_tensor().codes, expected.codes)
    assert torch.equal(state.full_tensor().scale, expected.scale)
    inner = inner_tensors(state)
    assert inner["codes"].placements == inner["scale"].placements == (Shard(0),)
    assert torch.equal(inner["codes"].full_tensor(), expected.codes)


if __name__ == "__main__":
    run_parts({name: part for name, part in globals().items() if callable(part)})
