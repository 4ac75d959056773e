"""A training step of a transformer of 12 layers under fully_shard on four Gloo ranks: Shardwise, torch's FSDP2, and flat buffers by hand.

    torchrun --nproc-per-node 4 benchmarks/fully_shard.py --widths 64 128 256 512 --turns 15

Each side shards every layer and then the model, and steps with AdamW. A turn runs each side once; a step ends when the slowest rank is
done. "cpu" is the CPU time of a rank's process, the mean over ranks. "peak" is the most bytes of tensors at one time within a step, minus
the bytes before the step, as torch's allocator counts them on rank 0. So it excludes parameters, gradients and the optimizer's state, which are the same on
all sides. "MB" is received by rank 0 with Shardwise. "bound" is the least it must receive: the parts of the parameters that it lacks, once
for the forward and once for the backward (not for the outermost group), and the gradients of its part from each other rank. After all steps
the parameters of Shardwise and FSDP2 are compared, and the losses of all sides. "by hand" is flat_parameters.py.
"""

import argparse
import gc
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from comparison import aligned
from flat_parameters import fully_sharded
from sides import machine_line
from torch import nn
from torch.profiler import ProfilerActivity, profile
from turns import in_turns, median, min_and_median

import shardwise as sw

N_LAYERS, N_WORDS = 12, 1000
TARGET_TIME, TARGET_PEAK = 0.8, 1.0
FSDP2, BY_HAND, OURS = "torch FSDP2", "by hand", "shardwise"


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n_heads = max(1, width // 64)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(N_WORDS, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(N_LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, N_WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Side:
    """`shard(model)` shards each layer and then the model, and returns the parameters that the optimizer steps."""

    def __init__(self, shard, width):
        torch.manual_seed(0)
        self.model = Transformer(width)
        self.optimizer = torch.optim.AdamW(shard(self.model), lr=1e-3)

    def step(self, ids):
        loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.roll(1, -1).flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def each_layer_and_model(fully_shard, mesh, model):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.parameters()


def sides(width):
    n_ranks = dist.get_world_size()
    torchs, ours = torch.distributed.init_device_mesh("cpu", (n_ranks,)), sw.init_device_mesh("cpu", (n_ranks,))
    return {
        FSDP2: Side(partial(each_layer_and_model, torch_fsdp.fully_shard, torchs), width),
        BY_HAND: Side(fully_sharded, width),
        OURS: Side(partial(each_layer_and_model, sw.fully_shard, ours), width),
    }


def peak_bytes(call):
    """The most bytes of tensors at one time within `call`, minus the bytes before it."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def bound(model):
    """Bytes that this rank must receive in a step."""
    sharded = [each for each in model.parameters() if each.dim() > 0]
    inner = {id(each) for layer in model.layers for each in layer.parameters()}
    n_bytes = 0
    for each in sharded:
        own = each.to_local().numel() * each.element_size()
        lacking = each.numel() * each.element_size() - own
        n_bytes += lacking * (2 if id(each) in inner else 1) + own * (dist.get_world_size() - 1)
    return n_bytes


def compared(options, width):
    all_sides = sides(width)
    ids = torch.randint(
        N_WORDS, (options.batch, options.length), generator=torch.Generator().manual_seed(dist.get_rank())
    )
    calls = {name: partial(side.step, ids) for name, side in all_sides.items()}
    losses = [torch.stack([call().detach(), call().detach()]) for call in calls.values()]
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0], rtol=1e-3, atol=1e-3)
    times = in_turns(calls, options.turns)
    with sw.CommDebugMode() as comm:
        calls[OURS]()
    calls[FSDP2]()  # as many steps as the side before, because their parameters are compared
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    for ours, theirs in zip(all_sides[OURS].model.parameters(), all_sides[FSDP2].model.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs.full_tensor(), rtol=1e-2, atol=1e-3)
    rows = []
    base, base_cpu = times[FSDP2]
    for name, (ms, cpu) in times.items():
        own = name == OURS
        rows.append(
            (width, name, *min_and_median(ms, base, 1), f"{median(cpu):.1f}", f"{median(cpu) / median(base_cpu):.2f}",
             f"{peaks[name] / 1e6:.2f}", f"{peaks[name] / peaks[FSDP2]:.2f}",
             f"{comm.bytes_received() / 1e6:.2f}" if own else "-", f"{bound(all_sides[name].model) / 1e6:.2f}" if own else "-")
        )  # fmt: skip
    return rows


HEADER = ("width", "side", "min ms", "median", "ratio", "of med.", "cpu ms", "ratio", "peak MB", "ratio", "MB", "bound")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--batch", type=int, default=2, help="sequences per rank")
    parser.add_argument("--length", type=int, default=32, help="ids per sequence")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rows = [row for width in options.widths for row in compared(options, width)]
    if dist.get_rank() == 0:
        print(machine_line())
        print(
            f"{dist.get_world_size()} ranks, {options.batch} x {options.length} ids per rank; targets: time {TARGET_TIME}, peak {TARGET_PEAK}"
        )
        print("\n".join(aligned([HEADER, *(tuple(map(str, row)) for row in rows)])))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
