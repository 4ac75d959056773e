"""Adapters in the manner of PEFT on a model that has been sharded before: the loss and the adapters' gradients are dense."""

import copy

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Adapted(nn.Module):
    """A linear layer with a LoRA adapter; the modules have PEFT's names."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, base_layer.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


def adapted(block, adapters):
    for name in PLAN:
        setattr(block, name, Adapted(getattr(block, name)))
    block.load_state_dict(adapters, strict=False)
    return block


def plan_of_adapters():
    """The styles of the layers. The adapter's part that has the layer's sharded features gets the style of the layer."""
    parts = {ColwiseParallel: "lora_B", RowwiseParallel: "lora_A"}
    return {f"{path}.{parts[type(style)]}.*": style for path, style in PLAN.items()}


@pytest.mark.parametrize("way", ["styles", "distribute_module"])
def test_adapters_of_a_sharded_model(way):
    torch.manual_seed(0)
    block = Block()
    x = torch.randn(4, 6)
    adapters = {name: torch.randn(shape) for name, shape in {
        "up.lora_A.default.weight": (3, 6), "up.lora_B.default.weight": (10, 3),
        "down.lora_A.default.weight": (3, 10), "down.lora_B.default.weight": (6, 3),
    }.items()}  # fmt: skip
    dense = adapted(copy.deepcopy(block), adapters)
    expected = dense(x).square().mean()
    expected.backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (3,))  # 10 features and 6 are cut unevenly
        if way == "styles":
            model = adapted(parallelize_module(copy.deepcopy(block), mesh, PLAN), adapters)
            parallelize_module(model, mesh, plan_of_adapters())
        else:
            model = adapted(sw.distribute_module(copy.deepcopy(block), mesh, rows), adapters)
        loss = model(x).square().mean()
        torch.testing.assert_close(whole(loss), expected.detach())
        loss.backward()
        for (name, parameter), reference in zip(model.named_parameters(), dense.parameters(), strict=True):
            assert (parameter.grad is None) == (reference.grad is None), name
            if parameter.grad is not None:
                torch.testing.assert_close(whole(parameter.grad), reference.grad, rtol=1e-4, atol=1e-5)

    run_ranks(3, check)


def rows(name, module, mesh):
    if isinstance(module, nn.Linear):
        module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [sw.Shard(0)]))


def whole(tensor):
    return tensor.detach().full_tensor() if isinstance(tensor, sw.DTensor) else tensor.detach()
