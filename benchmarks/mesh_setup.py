"""Time and store traffic of making meshes beside torch's init_device_mesh, on ranks that are processes forked from one.

    export PYTHONPATH=build/python                                # where Shardwise is built and not installed
    python benchmarks/mesh_setup.py                               # 4, 16 and 64 ranks, a minute on two cores
    python benchmarks/mesh_setup.py --ranks 16 --repeats 20

Gloo over a TCPStore that rank 0 serves. The sides take turns. Each turn is in a new world, whose making is not timed, and lasts until the
slowest rank has its mesh. Rows: the mesh alone; with a slice of two of its three dims; with the first message over each dim. "ratio" is
Shardwise's time divided by torch's, fastest and median. Calls of the store, counted in a further turn by a Store that passes them on, are of
one rank: keys set, and keys waited for and read.
"""

import argparse
import math
import os
import socket
import sys
import time
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
from comparison import aligned, is_chosen
from sides import SHARDWISE, TORCH, machine_line
from torch.distributed.device_mesh import init_device_mesh
from turns import median, ratios

import shardwise as sw

MAKERS = {TORCH: init_device_mesh, SHARDWISE: sw.init_device_mesh}
NAMES = ("a", "b", "c")


class CountingStore(dist.Store):
    """A store that counts its calls."""

    def __init__(self, store):
        super().__init__()
        self.store, self.calls = store, Counter()


def counted(name):
    def call(self, *args):
        self.calls[name] += 1
        return getattr(self.store, name)(*args)

    return call


for name in ("set", "get", "wait", "add", "check", "compare_set", "multi_get", "multi_set", "append"):
    setattr(CountingStore, name, counted(name))


def alone(make, n):
    side = math.isqrt(n)
    return make("cpu", (side, n // side), mesh_dim_names=NAMES[:2])


def sliced(make, n):
    side = math.isqrt(n)
    return make("cpu", (2, side // 2, n // side), mesh_dim_names=NAMES)["b", "c"]


def used(make, n):
    mesh = alone(make, n)
    for dim in range(2):
        dist.all_reduce(torch.zeros(1), group=mesh.get_group(dim))


ROWS = {"mesh of two dims": alone, "of three, a slice of two": sliced, "of two, and a message over each": used}


def run_rank(rank, n, port, args):
    patience = timedelta(seconds=120)
    store = dist.TCPStore("127.0.0.1", port, n, is_master=rank == 0, timeout=patience, wait_for_workers=False)
    turn = 0

    def timed(make, row, *, counts=False):
        nonlocal turn
        turn += 1
        prefixed = dist.PrefixStore(f"turn {turn}", store)
        if counts:
            prefixed = CountingStore(prefixed)
        dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=n, timeout=patience)
        dist.barrier()
        before = Counter(prefixed.calls) if counts else None
        start = time.perf_counter_ns()
        mesh = ROWS[row](make, n)
        took = torch.tensor((time.perf_counter_ns() - start) / 1e6)
        calls = prefixed.calls - before if counts else None
        dist.all_reduce(took, dist.ReduceOp.MAX)
        del mesh
        dist.destroy_process_group()
        sw._C.forget_world()  # the next mesh would close its groups otherwise
        return calls if counts else took.item()

    lines = [
        ["row, ms", TORCH, "median", SHARDWISE, "median", "ratio", "median", "keys set", "read", "keys set", "read"]
    ]
    for row in filter(lambda row: is_chosen(row, args), ROWS):
        ms = {side: [] for side in MAKERS}
        for i in range(args.repeats + 1):
            for side, make in MAKERS.items():
                took = timed(make, row)
                if i > 0:  # the first mesh of a program also installs what Shardwise replaces
                    ms[side].append(took)
        times = [f"{statistic(ms[side]):.1f}" for side in MAKERS for statistic in (min, median)]
        calls = [timed(make, row, counts=True) for make in MAKERS.values()]
        lines.append(
            [row, *times, *ratios(ms[SHARDWISE], ms[TORCH]), *(str(c[k]) for c in calls for k in ("set", "get"))]
        )
    if rank == 0:
        print(f"{n} ranks\n" + "\n".join(aligned(lines)) + "\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Time and store traffic of making meshes.")
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 16, 64])
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name contains one of these")
    parser.add_argument("--repeats", type=int, default=5, help="for each row (default: %(default)s)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    print(machine_line() + "\n", flush=True)
    for n in args.ranks:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(n):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                run_rank(rank, n, port, args)
                os._exit(0)
        failed = [rank for rank, process in enumerate(ranks) if os.waitpid(process, 0)[1] != 0]
        if failed:
            sys.exit(f"ranks {failed} failed")


if __name__ == "__main__":
    main()
