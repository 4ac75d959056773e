"""Dtypes and kernels in a dry run: autocast, layers in half precision, and attention are those of the device that is planned for."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.fsdp import MixedPrecisionPolicy, fully_shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BF16 = torch.bfloat16


def calls(x, weight):
    """Results of operators that autocast runs in low precision, in float32, in the widest dtype, and leaves alone."""
    low = F.linear(x, weight)
    yield from (low, x @ weight, torch.bmm(x[None], weight[None]), F.softmax(low, -1), F.layer_norm(low, (4,)))
    yield from (
        torch.cat([low, x]),
        F.mse_loss(low, low),
        low.sum(),
        low + x,
        low.exp(),
        F.gelu(low),
        low.double() @ weight.double(),
    )


def dtypes(device_type, make=lambda x: x):
    x, weight = make(torch.rand(4, 4)), nn.Parameter(make(torch.rand(4, 4)))
    with torch.autocast(device_type, BF16):
        found = [each.dtype for each in calls(x, weight)]
        with torch.autocast(device_type, enabled=False):
            found.append((x @ weight).dtype)
    found.append((x @ weight).dtype)
    F.linear(x, weight).sum().backward()
    return [*found, weight.grad.dtype]


def test_autocast_casts_as_on_the_cpu():
    known = dtypes("cpu")
    with sw.dry_run(4, device_type="cpu"):
        assert dtypes("cpu") == known
    assert dtypes("cpu") == known


@pytest.mark.parametrize("is_distributed", [False, True])
def test_autocast_casts_as_on_a_gpu(is_distributed):
    with sw.dry_run(4, device_type="cuda"):
        mesh = sw.init_device_mesh("cuda", (4,))
        make = (lambda x: sw.distribute_tensor(x, mesh, [Replicate()])) if is_distributed else (lambda x: x)
        float32, float64 = torch.float32, torch.float64
        assert dtypes("cuda", make) == [
            *(BF16, BF16, BF16, float32, float32),
            *(float32, float32, float32, float32, float32, BF16, float64),
            *(float32, float32, float32),
        ]


def test_autocast_casts_a_parameter_once():
    with sw.dry_run(4) as run:
        layer, x = nn.Linear(64, 64, bias=False), torch.rand(2, 64)
        with torch.autocast("cuda", BF16):
            for _ in range(3):
                layer(x)
    casts = [each for each in run.figures.works if each.op == "aten::_to_copy" and each.n_bytes == 64 * 64 * 6]
    assert len(casts) == 1


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(nn.LayerNorm, [8]), (nn.RMSNorm, [8]), (nn.GroupNorm, [2, 8]), (nn.BatchNorm1d, [8]), (nn.Linear, [8, 8])],
)
def test_a_layer_of_half_precision_runs(device_type, kind, sizes):
    with sw.dry_run(4, device_type=device_type):
        mesh = sw.init_device_mesh(device_type, (4,))
        module = sw.distribute_module(kind(*sizes).to(BF16), mesh)
        x = sw.distribute_tensor(torch.rand(8, 8, dtype=BF16), mesh, [Shard(0)]).requires_grad_()
        result = module(x)
        result.sum().backward()
        assert (result.dtype, x.grad.dtype, module.weight.grad.dtype) == (BF16, BF16, BF16)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("way", ["bf16", "policy", "autocast"])
def test_a_model_of_mixed_precision_trains(device_type, way):
    with sw.dry_run(4, device_type=device_type) as run:
        mesh = sw.init_device_mesh(device_type, (2, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(Block(), Block()).to(BF16 if way == "bf16" else torch.float32)
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            policy = MixedPrecisionPolicy(param_dtype=BF16) if way == "policy" else MixedPrecisionPolicy()
            fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.rand(4, 16, dtype=BF16 if way == "bf16" else torch.float32)
        for _ in range(2):
            with torch.autocast(device_type, BF16, enabled=way == "autocast"):
                model(x).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    products = {each.op for each in run.figures.works if each.flops}
    assert products >= {"aten::addmm", "aten::mm"}


HEADS, LENGTH, WIDTH = 8, 128, 16


def kept_by_attention(make, has_mask=False, n_shared=1, is_causal=False, dtype=torch.float32):
    """The bytes that attention keeps for its backward, beside its operands."""
    query = make(torch.rand(2, HEADS, LENGTH, WIDTH, dtype=dtype))
    key, value = (make(torch.rand(2, HEADS // n_shared, LENGTH, WIDTH, dtype=dtype)) for _ in range(2))
    operands = [each.requires_grad_() for each in (query, key, value)]
    mask = make(torch.rand(1, 1, LENGTH, LENGTH, dtype=dtype)) if has_mask else None
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        result = F.scaled_dot_product_attention(*operands, attn_mask=mask, is_causal=is_causal, enable_gqa=n_shared > 1)
    del result
    return sorted((tuple(each.shape), each.dtype) for each in kept)


def by_heads(mesh):
    return lambda x: sw.distribute_tensor(x, mesh, [Shard(1) if x.shape[1] > 1 else Replicate()])


CASES = [{}, {"is_causal": True}, {"has_mask": True}, {"n_shared": 2}, {"dtype": BF16}]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_plain_attention_keeps_what_it_keeps_on_the_cpu(options):
    known = kept_by_attention(lambda x: x, **options)
    with sw.dry_run(4, device_type="cpu"):
        assert kept_by_attention(lambda x: x, **options) == known


@pytest.mark.parametrize("options", CASES, ids=str)
def test_distributed_attention_keeps_what_it_keeps_on_the_cpu(options):
    with sw.dry_run(4, device_type="cpu") as run:
        mesh = sw.init_device_mesh("cpu", (4,))
        kept_by_attention(by_heads(mesh), **options)
    assert {each.op for each in run.figures.works if each.flops} == {"shardwise::fused_attention"}


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"dtype": BF16, "is_causal": True}, "aten::_scaled_dot_product_flash_attention"),
        ({"dtype": BF16, "n_shared": 2}, "aten::_scaled_dot_product_flash_attention"),
        ({}, "aten::_scaled_dot_product_efficient_attention"),
        ({"dtype": BF16, "has_mask": True}, "aten::_scaled_dot_product_efficient_attention"),
        ({"n_shared": 2}, "aten::bmm"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_distributed", [False, True])
def test_attention_takes_the_kernel_of_a_gpu(options, kernel, is_distributed):
    with sw.dry_run(4, device_type="cuda") as run:
        mesh = sw.init_device_mesh("cuda", (4,))
        kept_by_attention(by_heads(mesh) if is_distributed else (lambda x: x), **options)
    is_fused = is_distributed and kernel != "aten::bmm"
    assert {each.op for each in run.figures.works if each.flops} == {
        "shardwise::fused_attention" if is_fused else kernel
    }
