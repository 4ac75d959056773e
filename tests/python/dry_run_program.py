"""Training steps that run on real ranks and in a dry run: test_dry_run.py compares what they send, and the most memory that they hold.

Run under torchrun: dry_run_program.py PARTS FOLDER, see run_parts().
"""

import gc
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torchrun import run_parts

import shardwise as sw
from shardwise import _C, Shard
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

N_RANKS = 4


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (each(h).unflatten(-1, (-1, h.shape[-1] // self.heads)).transpose(1, 2) for each in self.qkv)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def blocks(width=64, heads=4, n=3):
    return nn.Sequential(*(Block(width, heads) for _ in range(n)))


def steps(model, *batch_shape):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss = model(torch.randn(batch_shape)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


STYLES = {
    "qkv.0": ColwiseParallel,
    "qkv.1": ColwiseParallel,
    "qkv.2": ColwiseParallel,
    "out": RowwiseParallel,
    "up": ColwiseParallel,
    "down": RowwiseParallel,
}


def tensor_parallel():
    mesh = sw.init_device_mesh("cpu", (N_RANKS,), mesh_dim_names=("tp",))
    model = blocks()
    for block in model:
        parallelize_module(block, mesh, {name: style() for name, style in STYLES.items()})
    steps(model, 4, 32, 64)


def fully_sharded():
    mesh = sw.init_device_mesh("cpu", (N_RANKS,))
    model = blocks(width=60)  # 60 rows, 240 columns: uneven shards
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    steps(model, 4, 32, 60)


def two_dims():
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = blocks(heads=2)
    for block in model:
        parallelize_module(block, mesh["tp"], {name: style() for name, style in STYLES.items()})
        fully_shard(block, mesh=mesh["dp"])
    steps(model, 4, 32, 64)


def distributed_activations():
    mesh = sw.init_device_mesh("cpu", (N_RANKS,))
    model = sw.distribute_module(nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 7)), mesh)
    model[0].weight = nn.Parameter(model[0].weight.detach().redistribute(placements=[Shard(0)]))
    model[2].weight = nn.Parameter(model[2].weight.detach().redistribute(placements=[Shard(1)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        x = sw.distribute_tensor(torch.randn(9, 30), mesh, [Shard(0)])
        model(x).logsumexp(1).sum().full_tensor().backward()
        optimizer.step()
        optimizer.zero_grad()


def distributed_attention():
    """Scores of all pairs would be most of the memory."""
    mesh = sw.init_device_mesh("cpu", (N_RANKS,))

    def heads(n):
        return sw.distribute_tensor(torch.randn(2, n, 256, 16), mesh, [Shard(1)]).requires_grad_()

    mask = sw.distribute_tensor(torch.randn(256, 256), mesh, [sw.Replicate()])
    for n_keys, options in ((8, {"is_causal": True}), (4, {"enable_gqa": True}), (8, {"attn_mask": mask})):
        for _ in range(2):
            result = nn.functional.scaled_dot_product_attention(heads(8), heads(n_keys), heads(n_keys), **options)
            result.sum().full_tensor().backward()


CASES = {
    each.__name__: each
    for each in (tensor_parallel, fully_sharded, two_dims, distributed_activations, distributed_attention)
}


def write(folder):
    """For each case and rank, writes its communications and the most bytes that its tensors hold."""
    for name, case in CASES.items():
        events = _C.EventReader("test", operators=True)
        case()  # makes the groups, and what is made once
        gc.collect()  # what ends during the profile would count as memory that is given back
        events.open()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as memory:
            case()
        events.close()
        figures = {"sent": sent(events.collectives()), "peak": most_bytes(memory)[1]}
        Path(folder, f"{name}-{dist.get_rank()}.json").write_text(json.dumps(figures))


def sent(events):
    return [[each.collective, each.op, each.bytes_sent, each.bytes_received] for each in events]


def most_bytes(memory):
    """The most bytes that were in use at one time of the profile: at least, and at most.

    The profile does not see what Gloo's threads release, as they do when the program has let go before them. At the end, when the program holds
    nothing, it still counts that.
    """
    held = most = 0
    changes = [each for each in memory.profiler.kineto_results.events() if each.name() == "[memory]"]
    for each in sorted(changes, key=lambda each: each.start_ns()):
        held += each.nbytes()
        most = max(most, held)
    return most - held, most


if __name__ == "__main__":
    run_parts({"write": write})
