"""The time of a training step as a dry run estimates it, beside the measured time: a Llama-like model, tensor-parallel on four ranks over Gloo.

The rates are measured first, with all ranks at work at once: of products, of memory, and of all-reduces after products. Ranks that share cores do not
end their products at the same time, and the first ones wait; the latency of an all-reduce includes that.

    $ python benchmarks/dry_run_time.py
"""

import argparse
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import shardwise as sw
from shardwise._dry_run.report import seconds
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

N_RANKS, HEADS = 4, 8
N_OPERANDS = 24
SECONDS_OF_WORK = 0.01  # before an all-reduce: several turns of ranks that share a core
ROUNDS = 3  # of which the fastest counts


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        h = self.before_attention(x)
        n = h.shape[-1] // HEADS
        q, k, v = (each(h).unflatten(-1, (-1, n)).transpose(1, 2) for each in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.before_mlp(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def training(options):
    """A function that runs one step."""
    mesh = sw.init_device_mesh("cpu", (N_RANKS,), mesh_dim_names=("tp",))
    model = nn.Sequential(*(Block(options.width) for _ in range(options.layers)))
    columns, rows = (
        dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel()),
        dict.fromkeys(("out", "down"), RowwiseParallel()),
    )
    for block in model:
        parallelize_module(block, mesh, {**columns, **rows})
    x = torch.randn(options.batch, options.length, options.width)

    def step():
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    return step


def seconds_each(function, repeats):
    """Seconds of a call while all ranks are at work, until the last one is done: as many ranks share a core as in a step."""
    function()
    found = []
    for _ in range(ROUNDS):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(repeats):
            function()
        dist.barrier()
        found.append((time.perf_counter() - begin) / repeats)
    return min(found)


def seconds_after(work, function, repeats):
    """Seconds that a call of `function` adds to a call of `work`."""
    return seconds_each(lambda: (work(), function()), repeats) - seconds_each(work, repeats)


def over(function, *operands):
    """A function that calls `function` on the next operands each time: like a model's, they are not in the cache, and results are new memory."""
    turns = itertools.cycle(zip(*operands, strict=True))
    return lambda: function(*next(turns))


def repeated(function, times):
    for _ in range(times):
        function()


def all_reduces(numel, count=1):
    """A function that adds up the next of `count` vectors over all ranks."""
    mesh = sw.init_device_mesh("cpu", (N_RANKS,))
    terms = [sw.DTensor.from_local(torch.ones(numel), mesh, [sw.Partial()]) for _ in range(count)]
    return over(lambda each: each.redistribute(placements=[sw.Replicate()]), terms)


def measure(options):
    """The rates of this machine, with all ranks at work, and the time of a step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    n = options.batch * options.length
    activations = [torch.randn(n, options.width) for _ in range(N_OPERANDS)]
    weights = [torch.randn(options.width, options.width // N_RANKS) for _ in range(N_OPERANDS)]
    x = activations[0]
    sent = 2 * x.nbytes * (N_RANKS - 1) / N_RANKS
    multiply = over(torch.mm, activations, weights)
    product = seconds_each(multiply, 200)
    n_products = torch.tensor(math.ceil(SECONDS_OF_WORK / product))
    dist.broadcast(n_products, 0)
    work = functools.partial(repeated, multiply, int(n_products))
    at_once = seconds_each(all_reduces(1), 100)
    latency = max(at_once, seconds_after(work, all_reduces(1), 40))
    found = {
        "flops": 2 * x.numel() * (options.width // N_RANKS) / product,
        "memory_bandwidth": 3 * x.nbytes / seconds_each(over(torch.add, activations, activations[::-1]), 200),
        "latency": latency,
        "bandwidth": sent / (seconds_each(all_reduces(x.numel(), N_OPERANDS), 40) - at_once),
        "step": seconds_each(training(options), options.repeats),
    }
    if dist.get_rank() == 0:
        Path(options.measure).write_text(json.dumps(found))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    with tempfile.NamedTemporaryFile() as file:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N_RANKS)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*words, *sys.argv, "--measure", file.name], check=True, env=environment)
        found = json.loads(Path(file.name).read_text())
    link = found["latency"] * 1e6, found["bandwidth"] / 1e9
    rates = {"flops": found["flops"] / 1e12, "memory_bandwidth": found["memory_bandwidth"] / 1e9, "links": [link]}
    times = []
    for n_steps in (1, 2):  # the second step's time is their difference
        with sw.dry_run(N_RANKS, device_type="cpu", **rates) as run:
            step = training(options)
            for _ in range(n_steps):
                step()
        times.append(sum(seconds(run.figures, run.machine)))
    estimated = times[1] - times[0]
    print(f"rates of a rank: {found['flops'] / 1e9:.1f} GFLOP/s, {rates['memory_bandwidth']:.1f} GB/s of memory")
    print(f"link: {link[0]:.0f} us, {link[1]:.2f} GB/s")
    print(
        f"a step: estimated {estimated * 1e3:.1f} ms, measured {found['step'] * 1e3:.1f} ms ({estimated / found['step']:.2f})"
    )


if __name__ == "__main__":
    main()
