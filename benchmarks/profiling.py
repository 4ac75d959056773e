"""The time that profile() adds to the training of a tensor-parallel transformer layer.

    export PYTHONPATH=build/python                            # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/profiling.py         # half a minute
    python benchmarks/profiling.py --count                      # instructions of a step on one rank (needs valgrind, takes 10 minutes)

Ranks over Gloo, float32, one thread each. A step starts behind a barrier and lasts until the slowest rank is done; both sides take turns.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from comparison import aligned
from sides import machine_line
from torch import nn
from turns import min_and_median, ms_in_turns

import shardwise as sw
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WITHOUT, WITH = "without", "with profile()"
N_COUNTED = 5


class Layer(nn.Module):
    """Attention and two linear layers, over heads and features."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.head_width = width // n_heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        normed = self.norms[0](x)
        heads = [
            part(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def step_of(width, n_heads, n_tokens, batch):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    columns, rows = ColwiseParallel(use_local_output=False), RowwiseParallel(use_local_output=False)
    plan = dict.fromkeys(("query", "key", "value", "up"), columns) | dict.fromkeys(("out", "down"), rows)
    layer = parallelize_module(Layer(width, n_heads), mesh, plan)
    for norm in layer.norms:
        for name, parameter in list(norm.named_parameters()):
            setattr(norm, name, nn.Parameter(sw.distribute_tensor(parameter.data, mesh, [sw.Replicate()])))
    x = sw.distribute_tensor(torch.randn(batch, n_tokens, width), mesh, [sw.Replicate()])
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return step


def profiled(step):
    def run():
        with sw.profile():
            step()

    return run


def compare(options):
    dist.init_process_group("gloo")
    step = step_of(options.width, options.heads, options.tokens, options.batch)
    calls = {WITHOUT: step, WITH: profiled(step)}
    for call in calls.values():
        call()
    with sw.profile() as recorded:
        step()
    ms = ms_in_turns(calls, options.repeats)
    if dist.get_rank() == 0:
        print(machine_line())
        print(
            f"a step of a transformer layer of width {options.width}, {options.batch} x {options.tokens} tokens, over "
            f"{dist.get_world_size()} ranks: {len(recorded.operators)} operators, {len(recorded.communications)} communications"
        )
        rows = [("side", "min ms", "median ms", "/without", "/without")]
        rows += [(side, *min_and_median(ms[side], ms[WITHOUT] if side == WITH else None, 2)) for side in calls]
        print("\n".join(aligned(rows)))
    dist.destroy_process_group()


def run_counted(options):
    """Runs under valgrind on one rank, which has the layouts of four ranks and sends nothing."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    step = step_of(options.width, options.heads, options.tokens, options.batch)
    for call in (step, profiled(step)):
        call()
        torch._C._valgrind_toggle()
        for _ in range(N_COUNTED):
            call()
        torch._C._valgrind_toggle_and_dump_stats()
    dist.destroy_process_group()


def count(options):
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/profile"]
        sizes = [f"--{name}={getattr(options, name)}" for name in ("width", "heads", "tokens", "batch")]
        subprocess.run([*valgrind, sys.executable, __file__, "--counted", *sizes], check=True, capture_output=True)
        without, with_profile = (
            int(re.search(r"^totals: (\d+)", Path(folder, f"profile.{i}").read_text(), re.MULTILINE)[1]) // N_COUNTED
            for i in (1, 2)
        )
    print(machine_line())
    print(
        f"instructions per step on one rank: {without:,} without, {with_profile:,} with profile(): {with_profile / without:.4f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--count", action="store_true", help="instructions, by valgrind")
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.counted:
        run_counted(options)
    elif options.count:
        count(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
