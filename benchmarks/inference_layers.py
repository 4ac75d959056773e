"""nn.MultiheadAttention and nn.TransformerEncoderLayer at inference: DTensors and plain tensors, with torch's fast paths on both sides.

    export PYTHONPATH=build/python                          # where Shardwise is built and not installed
    torchrun --nproc-per-node 1 benchmarks/inference_layers.py
    torchrun --nproc-per-node 2 benchmarks/inference_layers.py

Gloo, float32, one thread each. Each rank has its batches, [batch, length, width], and all weights. A call starts behind a barrier and lasts until
the slowest rank is done; sides take turns. Ratios are to the plain side.
"""

import argparse
import copy
from functools import partial

import torch
import torch.distributed as dist
from sides import machine_line
from torch import nn
from turns import min_and_median, ms_in_turns

import shardwise as sw

LAYERS = {
    "attention": lambda width, heads: nn.MultiheadAttention(width, heads, batch_first=True),
    "encoder layer": lambda width, heads: nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True),
}


def called(layer, given):
    with torch.inference_mode():
        return layer(*given)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    if dist.get_rank() == 0:
        print(f"{machine_line()}, {dist.get_world_size()} ranks")
        print(
            f"{'layer':<15}{'length':>6}{'plain min':>11}{'median':>8}{'shardwise':>11}{'median':>8}{'ratios':>8}{'':>6}"
        )
    for name, make in LAYERS.items():
        plain = make(options.width, options.heads).eval()
        ours = sw.distribute_module(copy.deepcopy(plain), mesh)
        for length in options.lengths:
            x = torch.randn(options.batch, length, options.width)
            placed = sw.DTensor.from_local(x, mesh, [sw.Shard(0)], run_check=False)
            n = 3 if name == "attention" else 1
            calls = {"plain": partial(called, plain, [x] * n), "shardwise": partial(called, ours, [placed] * n)}
            for call in calls.values():
                call()
            ms = ms_in_turns(calls, options.repeats)
            of_plain, of_ours = (min_and_median(ms[side], ms["plain"], 3) for side in calls)
            if dist.get_rank() == 0:
                print(
                    f"{name:<15}{length:>6}{of_plain[0]:>11}{of_plain[1]:>8}{of_ours[0]:>11}{of_ours[1]:>8}"
                    f"{of_ours[2]:>8}{of_ours[3]:>6}"
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
