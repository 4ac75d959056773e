"""Checkpoints of a model and its AdamW state: time, memory and bytes, beside torch.distributed.checkpoint with torch's DTensors.

    torchrun --nproc-per-node 4 benchmarks/checkpoint.py /dev/shm                      # 1 GiB: needs 10 GB of memory, 6 of them there
    torchrun --nproc-per-node 4 benchmarks/checkpoint.py /tmp --megabytes 64 --layouts

Shardwise uses the classes of shardwise.checkpoint, and torch its own. Both sides save and load the same memory, float32, by Gloo, each its own
files, in turns. A call ends when the slowest rank is done; ratios divide the minimum and the median of the calls by torch's. "cpu ms" is the
median CPU time of a rank's process, the mean over all four. "peak MiB" is the most resident memory that a call adds on a rank (VmHWM, which is
reset before); the state itself is there before. "bytes" of a load is what a rank has read from files and sockets, divided by the bytes of its part
of the state; of a save it is what all ranks have written there, divided by the bytes of the state. Each is the largest of the ranks and calls.
"largest MiB" is a rank's largest piece. `--layouts` adds rows of other layouts, and of many small tensors; torch has no uneven shards. A load
reads what the save above it has written.
"""

import argparse
import gc
import itertools
import shutil
from functools import cache, partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from comparison import aligned, is_chosen
from sides import SHARDWISE, TORCH, machine_line
from turns import in_turns, median, min_and_median

import shardwise as sw
from shardwise.checkpoint import FileSystemReader, FileSystemWriter

MIB = 1 << 20
TARGET_TIME, TARGET_PEAK = 0.7, 64
N_LAYERS, N_SMALL = 16, 1000
PARTS = ("model", "exp_avg", "exp_avg_sq")
PACKAGES = {TORCH: torch.distributed.tensor, SHARDWISE: sw}


def sizes_of(megabytes):
    """The parameters of a transformer of `megabytes`: 256 w^2 of them."""
    width = 32 * round(megabytes**0.5)
    layer = {"qkv": (3 * width, width), "out": (width, width), "up": (4 * width, width), "down": (width, 4 * width)}
    sizes = {f"layers.{i}.{name}": size for i in range(N_LAYERS) for name, size in layer.items()}
    return {"embedding": (32 * width, width), "head": (32 * width, width), **sizes}


SMALL = {f"layers.{i}": (8, 8) for i in range(N_SMALL)}


class Layout:
    """How tensors lie on the first ranks. `places` has an entry per mesh dim: a tensor dim, None for replicas, "uneven" for rows that torch cannot
    have. Pieces are tensors of their own, or parts of one piece of memory."""

    def __init__(self, shape, *places, in_one=False, sizes=None):
        self.shape, self.places, self.in_one, self.sizes = shape, places, in_one, sizes

    @cache  # noqa: B019 (a layout lives as long as the program)
    def mesh(self, side):
        n = torch.Size(self.shape).numel()
        package = torch.distributed.device_mesh if side == TORCH else sw
        return package.DeviceMesh("cpu", torch.arange(n).view(self.shape))

    @cache  # noqa: B019
    def group(self):
        return dist.new_group(list(range(torch.Size(self.shape).numel())))

    def placements(self, side, size):
        package, n_ranks = PACKAGES[side], torch.Size(self.shape).numel()
        uneven = [size[0] - size[0] // 8 * (n_ranks - 1)] + [size[0] // 8] * (n_ranks - 1)
        of = {None: package.Replicate}
        if "uneven" in self.places:
            of["uneven"] = partial(sw.Shard, 0, sizes=uneven)
        return [of[place]() if place in of else package.Shard(place) for place in self.places]

    def states(self, sizes):
        """By side, the state dict of a model of these sizes, which shares its memory with the other side's."""
        sides = [SHARDWISE] if "uneven" in self.places else [TORCH, SHARDWISE]
        pieces = [
            sw.empty(*size, device_mesh=self.mesh(SHARDWISE), placements=self.placements(SHARDWISE, size)).to_local()
            for _ in PARTS
            for size in sizes.values()
        ]
        if self.in_one:
            memory = torch.empty(sum(each.numel() for each in pieces))
            pieces = [part.view_as(each) for part, each in zip(memory.split([each.numel() for each in pieces]), pieces)]
        for piece in pieces:
            piece.copy_(torch.arange(piece.numel(), dtype=torch.float32).view_as(piece))
        by_side = {}
        for side in sides:
            state, rest = {part: {} for part in PARTS}, iter(pieces)
            for part, (name, size) in itertools.product(PARTS, sizes.items()):
                state[part][name] = PACKAGES[side].DTensor.from_local(
                    next(rest),
                    self.mesh(side),
                    self.placements(side, size),
                    shape=torch.Size(size),
                    stride=(size[1], 1),
                )
            by_side[side] = {**state, "step": {name: torch.tensor(7.0) for name in sizes}}
        return by_side, sum(piece.nbytes for piece in pieces), max(piece.nbytes for piece in pieces)


class Meter:
    """The most memory that calls add, and the most bytes that they read and write."""

    def __init__(self):
        self.peak = self.n_read = self.n_written = 0

    def call(self, work):
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before, files = facts("status")["VmRSS"], facts("io")
        work()
        now, after = facts("status")["VmHWM"], facts("io")
        self.peak = max(self.peak, (now - before) * 1024)
        self.n_read = max(self.n_read, after["rchar"] - files["rchar"])
        self.n_written = max(self.n_written, after["wchar"] - files["wchar"])


def facts(name):
    """The numbers in a file of /proc/self by their names."""
    with open(f"/proc/self/{name}") as file:
        lines = [line.split() for line in file]
    return {line[0][:-1]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def save(folder, side, state, group):
    writer = (FileSystemWriter if side == SHARDWISE else dcp.FileSystemWriter)(f"{folder}/{side}")
    dcp.save(state, storage_writer=writer, process_group=group)


def load(folder, side, state, group):
    reader = (FileSystemReader if side == SHARDWISE else dcp.FileSystemReader)(f"{folder}/{side}")
    dcp.load(state, storage_reader=reader, process_group=group)


def row(options, folder, label, work, layout, sizes):
    """The lines of a table: a side's times, peak and bytes."""
    group, n_ranks = layout.group(), torch.Size(layout.shape).numel()
    takes_part = dist.get_rank() < n_ranks
    sides = [SHARDWISE] if "uneven" in layout.places else [TORCH, SHARDWISE]
    for side in sides:
        layout.mesh(side)  # all ranks make the groups
    states, n_own, n_largest = layout.states(sizes) if takes_part else ({}, 0, 0)
    meters = {side: Meter() for side in sides}

    def call(side):
        if takes_part:
            meters[side].call(partial(work, folder, side, states[side], group))

    def clear(side):
        if work is save and dist.get_rank() == 0:
            shutil.rmtree(f"{folder}/{side}", ignore_errors=True)

    times = in_turns({side: partial(call, side) for side in sides}, options.turns, clear)
    n_bytes = len(PARTS) * sum(torch.Size(size).numel() for size in sizes.values()) * 4
    lines = []
    for side, meter in meters.items():
        most = torch.tensor([meter.peak / MIB, meter.n_read / max(1, n_own), n_largest / MIB])
        written = torch.tensor(meter.n_written / n_bytes)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.all_reduce(written)
        (ms, cpu), (base, base_cpu) = times[side], times[TORCH] if side != TORCH and TORCH in times else (None, None)
        cpu_share = f"{median(cpu) / median(base_cpu):.2f}" if base_cpu else "-"
        share = f"{(written if work is save else most[1]).item():.3f}"
        own = min_and_median(ms, base, 0)
        lines.append([label, side, *own, f"{median(cpu):.0f}", cpu_share, f"{most[0]:.1f}", share, f"{most[2]:.1f}"])
    return lines


def rows(options):
    """(what is loaded and saved, layout, sizes) of each row. A load reads what the last save has written."""
    large, part = sizes_of(options.megabytes), sizes_of(options.megabytes / 4)
    four = Layout((4,), 0)
    yield "save S0 on 4", save, four, large
    for n in (4, 2, 1):
        yield f"load S0 on {n}", load, Layout((n,), 0), large
    yield "load S1 on 2", load, Layout((2,), 1), large
    if not options.layouts:
        return
    for label, layout in {
        "S0 in one memory on 4": Layout((4,), 0, in_one=True),
        "R on 4": Layout((4,), None),
        "S1 on 4": Layout((4,), 1),
        "R,S0 on 2x2": Layout((2, 2), None, 0),
        "S0,S1 on 2x2": Layout((2, 2), 0, 1),
        "uneven S0 on 4": Layout((4,), "uneven"),
    }.items():
        yield f"save {label}", save, layout, part
        yield f"load {label}", load, layout, part
        if label == "S1 on 4":
            yield "load S0 of S1 on 4", load, four, part
    yield f"save {3 * N_SMALL} small on 4", save, four, SMALL
    yield f"load {3 * N_SMALL} small on 4", load, four, SMALL
    yield f"load {3 * N_SMALL} small on 1", load, Layout((1,), 0), SMALL


HEADER = ("row", "side", "min ms", "median", "ratio", "of med.", "cpu ms", "ratio", "peak MiB", "bytes", "largest MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="gets a folder of the checkpoints, which is removed")
    parser.add_argument(
        "--megabytes", type=int, default=1024, help="of the model in MiB, a square; its AdamW state has twice as many"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layouts", action="store_true", help="rows of a quarter of the size in other layouts, too")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name contains one of these")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    folder = f"{options.folder}/checkpoints"
    lines = [HEADER]
    for label, work, layout, sizes in rows(options):
        if is_chosen(label, options):
            lines += row(options, folder, label, work, layout, sizes)
            if dist.get_rank() == 0:
                print(*lines[-2:], sep="\n", flush=True)
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        n_bytes = 4 * sum(torch.Size(size).numel() for size in sizes_of(options.megabytes).values())
        print(
            f"{machine_line()}\n{options.turns} turns, a model of {n_bytes / MIB:.0f} MiB in {options.folder}; targets: ",
            end="",
        )
        print(f"time {TARGET_TIME}, peak {TARGET_PEAK} MiB, bytes 1")
        print("\n".join(aligned(lines)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
