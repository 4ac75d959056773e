"""Attention of DTensors compared with torch's kernel on a rank's own part: time, and memory that a forward keeps for its backward.

    export PYTHONPATH=build/python                          # where Shardwise is built and not installed
    torchrun --nproc-per-node 2 benchmarks/attention.py
    torchrun --nproc-per-node 1 benchmarks/attention.py --device cuda --dtype bfloat16 --causal
    torchrun --nproc-per-node 2 benchmarks/attention.py --causal --lengths 1024 4096

Gloo (NCCL on GPUs), float32 by default, one thread each. If batch or heads are sharded, each rank has [batch, heads, length, width]. If
queries are sharded, each rank has length / ranks of them and all keys and values; the plain side then sums the gradients of keys and values
by all-reduces, as Shardwise does. With --causal, the plain side with sharded queries gives torch a mask for its rows.

A call starts behind a barrier and lasts until the slowest rank is done; sides take turns. Ratios are to the plain side. "kept" is the
memory that the graph of one forward keeps. "peak" is the most that torch's allocator held during forward and backward, minus what it held
before. Both are MiB of rank 0.
"""

import argparse

import torch
import torch.distributed as dist
from embedding_memory import MIB, measure
from sides import backend, machine_line, use_device
from torch.nn.functional import scaled_dot_product_attention
from turns import min_and_median, ms_in_turns

import shardwise as sw

LAYOUTS = {"batch": 0, "heads": 1, "queries": 2}
TARGET = 1.05


def parts(options, length, dim):
    """This rank's query, key and value. If queries are sharded (`dim` 2), its queries are from the middle of the sequence."""
    torch.manual_seed(0)
    n_queries = length // dist.get_world_size() if dim == 2 else length
    shape = (options.batch, options.heads, n_queries, options.width)
    kind = {"dtype": getattr(torch, options.dtype), "device": options.device}
    return torch.randn(shape, **kind), *(torch.randn(*shape[:2], length, options.width, **kind) for _ in range(2))


def plain_call(options, length, dim, with_backward):
    leaves = [part.requires_grad_(with_backward) for part in parts(options, length, dim)]
    kwargs = {"is_causal": options.causal}
    if options.causal and dim == 2:
        n = length // dist.get_world_size()
        rows = torch.arange(dist.get_rank() * n, (dist.get_rank() + 1) * n, device=options.device)
        kwargs = {"attn_mask": rows[:, None] >= torch.arange(length, device=options.device)}

    def call():
        out = scaled_dot_product_attention(*leaves, **kwargs)
        if with_backward:
            grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
            if dim == 2:
                for grad in grads[1:]:
                    dist.all_reduce(grad)

    return call, lambda: scaled_dot_product_attention(*leaves, **kwargs)


def distributed_call(options, length, dim, with_backward):
    mesh = sw.init_device_mesh(options.device, (dist.get_world_size(),))
    of_keys = sw.Replicate() if dim == 2 else sw.Shard(dim)
    leaves = [
        sw.DTensor.from_local(part, mesh, [placement], run_check=False).detach().requires_grad_(with_backward)
        for part, placement in zip(parts(options, length, dim), [sw.Shard(dim), of_keys, of_keys], strict=True)
    ]

    def forward():
        return scaled_dot_product_attention(*leaves, is_causal=options.causal)

    def call():
        out = forward()
        if with_backward:
            torch.autograd.grad(out, leaves, torch.ones_like(out))

    return call, forward


def kept_bytes(forward):
    """The bytes that the graph of the forward keeps. Shared memory counts once."""
    storages = {}

    def pack(tensor):
        local = tensor.to_local() if isinstance(tensor, sw.DTensor) else tensor
        storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storages.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument(
        "--repeats", type=int, default=20, help="at a length of 4096; up to 10 times as many of shorter ones"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="a name of torch's (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    use_device(options.device)
    dist.init_process_group(backend())
    is_first = dist.get_rank() == 0
    if is_first:
        print(f"{machine_line()}, {dist.get_world_size()} ranks, {'causal' if options.causal else 'not causal'}")
        print(f"a rank's part: [{options.batch}, {options.heads}, length, {options.width}]")
        print(
            f"{'sharded':<9}{'length':>7}  {'':<9}{'plain min':>10}{'median':>8}{'shardwise':>10}{'median':>8}"
            f"{'ratios':>8}{'':>6}  {'kept':>13}  {'peak':>13}"
        )
    worst = 0.0
    for name, dim in LAYOUTS.items():
        for length in options.lengths:
            for with_backward in (False, True):
                makers = {"plain": plain_call, "shardwise": distributed_call}
                made = {side: make(options, length, dim, with_backward) for side, make in makers.items()}
                calls = {side: call for side, (call, _) in made.items()}
                for call in calls.values():
                    for _ in range(3):
                        call()
                ms = ms_in_turns(calls, options.repeats * min(10, max(1, 4096 // length)))
                plain, ours = (min_and_median(ms[side], ms["plain"], 2) for side in calls)
                memory = ["", ""]
                if with_backward:
                    kept = [f"{kept_bytes(forward) / MIB:.2f}" for _, forward in made.values()]
                    peaks = [f"{measure(call).peak / MIB:.2f}" for call in calls.values()]
                    memory = [" / ".join(kept), " / ".join(peaks)]
                worst = max(worst, float(ours[3]))
                if is_first:
                    what = "and back" if with_backward else "forward"
                    print(
                        f"{name:<9}{length:>7}  {what:<9}{plain[0]:>10}{plain[1]:>8}{ours[0]:>10}{ours[1]:>8}"
                        f"{ours[2]:>8}{ours[3]:>6}  {memory[0]:>13}  {memory[1]:>13}",
                        flush=True,
                    )
    if is_first:
        print(f"median over plain's: worst {worst:.2f}; target {TARGET}, {'reached' if worst <= TARGET else 'missed'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
