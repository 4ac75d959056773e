"""A compiled, tensor-parallel transformer block: forward and backward with Shardwise and with torch.distributed.tensor side by side.

    export PYTHONPATH=build/python                               # where Shardwise is built and not installed
    torchrun --nproc-per-node 2 benchmarks/compiled_block.py     # some minutes, mostly for compiling

Gloo, float32, one thread each; torch.compile with backend="inductor". Both sides shard the same weights by the same plan, with the
ColwiseParallel and RowwiseParallel of their own packages. The third side is plain: the compiled block with one rank's heads and hidden
features, followed by the four all-reduces of a step.

A step starts behind a barrier and lasts until the slowest rank is done; sides take turns. Ratios are to torch.distributed.tensor.
"""

import argparse
import importlib

import torch
import torch.distributed as dist
from sides import SHARDWISE, TORCH, machine_line
from torch import nn
from turns import min_and_median, ms_in_turns

TARGETS = {TORCH: 1.0, "plain + all-reduces": 1.1}


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm. `share`: one over the number of ranks that split heads and features."""

    def __init__(self, width, n_heads, share=1):
        super().__init__()
        self.head_width = width // n_heads
        inner, hidden = width // share, 4 * width // share
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.o = nn.Linear(inner, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        batch, length, _ = x.shape
        normed = self.attention_norm(x)
        q, k, v = (
            layer(normed).view(batch, length, -1, self.head_width).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))


def parallel_block(package, options):
    parallel = importlib.import_module(f"{package}.parallel")
    init_device_mesh = importlib.import_module(
        "shardwise" if package == SHARDWISE else "torch.distributed"
    ).init_device_mesh
    torch.manual_seed(0)
    block = Block(options.width, options.heads)
    plan = {name: parallel.ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan |= {name: parallel.RowwiseParallel() for name in ("o", "down")}
    return parallel.parallelize_module(block, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def step(block, x, reductions=0):
    """A call that runs forward and backward, and then `reductions` all-reduces of the size of an activation."""
    compiled = torch.compile(block, fullgraph=True)

    def call():
        for parameter in block.parameters():
            parameter.grad = None
        compiled(x).square().mean().backward()
        for _ in range(reductions):
            dist.all_reduce(torch.empty_like(x))

    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    x = torch.randn(options.batch, options.length, options.width)
    blocks = {package: parallel_block(package, options) for package in (TORCH, SHARDWISE)}
    results = {name: block(x) for name, block in blocks.items()}
    torch.testing.assert_close(results[SHARDWISE], results[TORCH])
    calls = {name: step(block, x) for name, block in blocks.items()}
    share = Block(options.width, options.heads, share=dist.get_world_size())
    calls["plain + all-reduces"] = step(share, x, reductions=4)
    for call in calls.values():
        for _ in range(5):
            call()
    ms = ms_in_turns(calls, options.repeats)
    if dist.get_rank() == 0:
        print(machine_line())
        print(
            f"{dist.get_world_size()} ranks, [{options.batch}, {options.length}, {options.width}], {options.heads} heads"
        )
        print(f"{'side':<26}{'min ms':>9}{'median':>9}{'shardwise over it, min':>25}{'median':>9}   target")
        for name in calls:
            own = min_and_median(ms[name], None, 2)[:2]
            ratios = min_and_median(ms[SHARDWISE], ms[name], 2)[2:]
            target = f"{TARGETS[name]:.1f}" if name in TARGETS else "-"
            print(f"{name:<26}{own[0]:>9}{own[1]:>9}{ratios[0]:>25}{ratios[1]:>9}   {target}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
