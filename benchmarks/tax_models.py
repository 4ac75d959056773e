"""The tensor-parallel transformer that benchmarks/tax.py trains: written by hand with plain tensors, and by the names of DTensor packages."""

import importlib

import torch
import torch.distributed as dist
from four_ranks_by_hand import Copied, Summed
from torch import nn

BY_OUTPUTS, BY_INPUTS = ("q", "k", "v", "up"), ("o", "down")


class Attention(nn.Module):
    def __init__(self, width, inner, head_width):
        super().__init__()
        self.head_width = head_width
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.o = nn.Linear(inner, width)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, self.head_width).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(heads.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm. `n_ranks` split heads and hidden features."""

    def __init__(self, width, n_ranks=1):
        super().__init__()
        n_heads = max(4, width // 64)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, width // n_ranks, width // n_heads)
        self.feed_forward = FeedForward(width, 4 * width // n_ranks)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


def dense(width, n_layers, n_ranks=1):
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width, n_ranks) for _ in range(n_layers)))


class SummedLinear(nn.Linear):
    """A product whose input features are split: the terms are summed before the bias is added."""

    def forward(self, x):
        return Summed.apply(nn.functional.linear(x, self.weight)) + self.bias


def by_hand(width, n_layers):
    """As Megatron-LM: in each half of a layer, Copied at its beginning and Summed at its end."""
    model, whole = dense(width, n_layers, dist.get_world_size()), dense(width, n_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = whole.get_parameter(name)
            for dim in range(value.dim()):
                if parameter.size(dim) != value.size(dim):
                    value = value.chunk(dist.get_world_size(), dim)[dist.get_rank()]
            parameter.copy_(value)
    for layer in model:
        for half, last in ((layer.attention, "o"), (layer.feed_forward, "down")):
            getattr(half, last).__class__ = SummedLinear
            half.register_forward_pre_hook(lambda half, inputs: Copied.apply(*inputs))
    return model


def mesh_of(package):
    found = importlib.import_module("torch.distributed" if package.startswith("torch") else package)
    return found.init_device_mesh("cpu", (dist.get_world_size(),))


def by_styles(package, width, n_layers, *, plain):
    """By the parallel styles of `package`; between the layers of a half, activations are plain tensors or DTensors."""
    parallel = importlib.import_module(f"{package}.parallel")
    whole = importlib.import_module(package).Replicate()
    plan = {}
    for i in range(n_layers):
        for name in BY_OUTPUTS:
            half = "feed_forward" if name == "up" else "attention"
            plan[f"{i}.{half}.{name}"] = parallel.ColwiseParallel(use_local_output=plain)
        for name, half in zip(BY_INPUTS, ("attention", "feed_forward"), strict=True):
            plan[f"{i}.{half}.{name}"] = parallel.RowwiseParallel()
            plan[f"{i}.{half}"] = parallel.PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,))
    return parallel.parallelize_module(dense(width, n_layers), mesh_of(package), plan)


def distributed(package, width, n_layers):
    """By distribute_module alone, with sharded weights: every activation is a DTensor."""
    import shardwise as sw

    def shard(name, module, mesh):
        last = name.rsplit(".", 1)[-1]
        if last not in BY_OUTPUTS + BY_INPUTS:
            return
        dims = {"weight": 0, "bias": 0} if last in BY_OUTPUTS else {"weight": 1}
        for key, dim in dims.items():
            value = sw.distribute_tensor(module.get_parameter(key).detach(), mesh, [sw.Shard(dim)])
            module.register_parameter(key, nn.Parameter(value))

    return sw.distribute_module(dense(width, n_layers), mesh_of(package), shard)
