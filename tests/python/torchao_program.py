"""Run by test_torchao.py, on ranks that are processes."""

import copy
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


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def float8_styles(folder):
    """Training in float8 by torchao's own parallel styles, with and without sharded positions."""
    install()
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_tensor_parallel import (
        Float8ColwiseParallel,
        Float8RowwiseParallel,
        PrepareFloat8ModuleInput,
    )

    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    given, x = nn.ModuleDict({"ffn": FeedForward()}), torch.randn(2, 16, 32)
    convert_to_float8_training(given, config=Float8LinearConfig(emulate=True))
    dense = copy.deepcopy(given)
    expected = dense["ffn"](x)
    expected.square().sum().backward()
    positions = PrepareFloat8ModuleInput(
        input_layouts=Shard(1), desired_input_layouts=sw.Replicate(), fwd_config_submodule_fqn="up"
    )
    for plan, inputs in (
        ({"ffn.up": Float8ColwiseParallel(), "ffn.down": Float8RowwiseParallel()}, x),
        (
            {
                "ffn": positions,
                "ffn.up": Float8ColwiseParallel(),
                "ffn.down": Float8RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            },
            sw.distribute_tensor(x, mesh, [Shard(1)]),
        ),
    ):
        model = sw.parallel.parallelize_module(copy.deepcopy(given), mesh, plan)
        result = model["ffn"](inputs)
        whole = result.full_tensor() if isinstance(result, sw.DTensor) else result
        whole.square().sum().backward()
        torch.testing.assert_close(whole, expected)
        for own, other in zip(model.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(own.grad.full_tensor(), other.grad)


def adapters_of_nf4(folder):
    """Adapters are trained beside frozen weights of 4 bits, under fully_shard."""
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            frozen = to_nf4(torch.randn(64, 64), block_size=32, scaler_block_size=8)
            self.weight = nn.Parameter(frozen, requires_grad=False)
            self.a, self.b = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

        def forward(self, x):
            return linear_nf4(x, self.weight) + self.b(self.a(x))

    def made():
        torch.manual_seed(0)
        return nn.Sequential(Adapted(), nn.ReLU(), Adapted())

    mesh, model, dense, x = sw.init_device_mesh("cpu", (dist.get_world_size(),)), made(), made(), torch.ones(4, 64)
    for each in (model[0], model[2], model):
        sw.fully_shard(each, mesh=mesh)
    for each in (model, dense):
        optimizer = torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    for name, parameter in dense.named_parameters():
        own = model.get_parameter(name)
        if parameter.requires_grad:
            torch.testing.assert_close(own.detach().full_tensor(), parameter.detach())
        else:
            assert type(own.to_local()) is type(parameter.data) and own.to_local().shape[0] < 64


if __name__ == "__main__":
    run_parts({name: part for name, part in globals().items() if callable(part)})
