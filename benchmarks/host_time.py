"""Host time of calls around operators: attributes, conversions, moves of small tensors, and functions over a thousand parameters.

    export PYTHONPATH=build/python                                # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/host_time.py           # every row, some minutes
    torchrun --nproc-per-node 1 benchmarks/host_time.py           # without messages
    torchrun --nproc-per-node 4 benchmarks/host_time.py --rows placements distribute_tensor

Plain tensors, torch.distributed.tensor and Shardwise take turns; Gloo, float32, one thread per rank. A turn starts behind a barrier and lasts
until the slowest rank is done. Times are divided by the number of attributes, tensors or layers in a turn. "by hand" is the move's program in
benchmarks/redistribute_moves, on four ranks. "ratio" is Shardwise's time divided by torch's, both minus the plain side's where there is one.
"""

import argparse
import importlib
import warnings
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from comparison import add_row_arguments, aligned, is_chosen
from redistribute_moves import MOVES, N_RANKS, text
from sides import PLAIN, SHARDWISE, TORCH, calls_of, machine_line
from torch import nn
from turns import in_turns_for, median, ms_of

N_PARAMETERS, N_LAYERS = 1000, 200
BY_HAND = "by hand"


class Side:
    """A package, with meshes of all ranks and of slices of a 2-D mesh. The plain side has no package."""

    def __init__(self, name):
        self.name = name
        self.is_plain = name == PLAIN
        if self.is_plain:
            return
        self.package = importlib.import_module(name)
        n_ranks = dist.get_world_size()
        self.mesh = self.package.init_device_mesh("cpu", (n_ranks,))
        outer = 2 if n_ranks % 2 == 0 else 1
        both = self.package.init_device_mesh("cpu", (outer, n_ranks // outer), mesh_dim_names=("a", "b"))
        self.meshes = [self.mesh, both["a"], both["b"]]
        self.shard, self.replicate, self.partial = (
            self.package.Shard(0),
            self.package.Replicate(),
            self.package.Partial(),
        )
        self.fully_shard = (self.package if name == SHARDWISE else torch.distributed.fsdp).fully_shard

    def tensor(self, *sizes, mesh=None, placement=None):
        data = torch.zeros(sizes)
        if self.is_plain:
            return data
        return self.package.distribute_tensor(data, mesh or self.mesh, [placement or self.shard])


def layers(n):
    return nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(n)))


def attribute(name):
    def make(side):
        if side.is_plain:
            return None
        tensor = side.tensor(8, 8)

        def read():
            for _ in range(1000):
                getattr(tensor, name)

        return read

    return make


def distribute_small(side):
    return None if side.is_plain else lambda: side.tensor(8, 8)


def from_local(side):
    if side.is_plain:
        return None
    parts = [torch.zeros(8, 8) for _ in range(N_PARAMETERS)]
    make, mesh, placements = side.package.DTensor.from_local, side.mesh, [side.shard]
    return lambda: [make(part, mesh, placements, run_check=False) for part in parts]


def move(before, after):
    def make(side):
        if side.is_plain:
            return None
        own = torch.zeros(1024 if before != "shard" else 1024 // side.mesh.size())
        tensor = side.package.DTensor.from_local(own, side.mesh, [getattr(side, before)], run_check=False)
        placements = [getattr(side, after)]
        return lambda: tensor.redistribute(placements=placements).to_local()

    return make


def by_hand(row):
    """By the name of the side, the program of the move that `row` names, if there is one."""
    programs = {f"4 KB, {text(each.source)} -> {text(each.target)}": each for each in MOVES if each.mesh == (N_RANKS,)}
    if row not in programs or dist.get_world_size() != N_RANKS:
        return {}
    n_own = 1024 // N_RANKS if programs[row].source == (0,) else 1024
    return {BY_HAND: programs[row].by_hand(torch.zeros(n_own, 1), (1024, 1), programs[row])}


def sharded_forward(side):
    model = layers(N_LAYERS)
    if not side.is_plain:
        for layer in model:
            side.fully_shard(layer, mesh=side.mesh)
        side.fully_shard(model, mesh=side.mesh)
    x = torch.zeros(1, 8)

    def forward():
        with torch.no_grad():
            model(x)

    return forward


def clip(side):
    parameters = []
    for i in range(N_PARAMETERS):
        mesh = None if side.is_plain else side.meshes[i % 3]
        parameters.append(nn.Parameter(side.tensor(8, 8, mesh=mesh)))
        parameters[-1].grad = side.tensor(8, 8, mesh=mesh)
    return lambda: nn.utils.clip_grad_norm_(parameters, 1.0)


def distributed_layers(side):
    model = layers(N_PARAMETERS)
    if not side.is_plain:
        side.package.distribute_module(model, side.mesh)
    return model


def distribute_module(side):
    if side.is_plain:
        return lambda: layers(N_PARAMETERS)
    return lambda: side.package.distribute_module(layers(N_PARAMETERS), side.mesh)


# name: turns a side into what is measured, or None; the number that a turn's time is divided by
ROWS = {
    "placements": (attribute("placements"), 1000),
    "device_mesh": (attribute("device_mesh"), 1000),
    "distribute_tensor of 256 bytes": (distribute_small, 1),
    "from_local": (from_local, N_PARAMETERS),
    "4 KB, S0 -> R": (move("shard", "replicate"), 1),
    "4 KB, R -> S0": (move("replicate", "shard"), 1),
    "4 KB, P -> R": (move("partial", "replicate"), 1),
    "4 KB, P -> S0": (move("partial", "shard"), 1),
    "forward of fully_shard, layer": (sharded_forward, N_LAYERS),
    "clip_grad_norm_ on three meshes": (clip, N_PARAMETERS),
    "state_dict": (lambda side: distributed_layers(side).state_dict, N_PARAMETERS),
    "distribute_module": (distribute_module, N_PARAMETERS),
}


def measured(row, sides, seconds):
    """Microseconds of each side, fastest and median."""
    make, n = ROWS[row]
    times = ms_of(in_turns_for({**calls_of(sides, make), **by_hand(row)}, seconds))
    return {side: SimpleNamespace(least=min(ms) * 1e3 / n, median=median(ms) * 1e3 / n) for side, ms in times.items()}


def cells(row, times):
    found = [row]
    for side in (PLAIN, BY_HAND, TORCH, SHARDWISE):
        found += [f"{times[side].least:.2f}", f"{times[side].median:.2f}"] if side in times else ["-", "-"]
    for kind in ("least", "median"):
        ours, theirs, plain = (
            getattr(times[side], kind) if side in times else None for side in (SHARDWISE, TORCH, PLAIN)
        )
        found.append("-" if theirs is None else f"{(ours - (plain or 0)) / (theirs - (plain or 0)):.3f}")
    return found


def main():
    parser = argparse.ArgumentParser(description="Host time of calls around operators.")
    add_row_arguments(parser, seconds=5.0)
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sides = [Side(name) for name in (PLAIN, TORCH, SHARDWISE)]
    columns = ("plain", BY_HAND, "torch", "shardwise", "ratio")
    lines = [["row, us", *(cell for column in columns for cell in (column, "median"))]]
    for row in ROWS:
        if is_chosen(row, args):
            lines.append(cells(row, measured(row, sides, args.seconds)))
    if dist.get_rank() == 0:
        print(f"{machine_line()}, {dist.get_world_size()} ranks\n")
        print("\n".join(aligned(lines)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
