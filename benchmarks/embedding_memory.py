"""The memory that the backward of a row-sharded embedding allocates on each rank: it shows whether a rank makes the whole table's gradient.

    torchrun --nproc-per-node 4 benchmarks/embedding_memory.py
    torchrun --nproc-per-node 4 benchmarks/embedding_memory.py --rows 200000 --columns 64 --ids 4096

Three figures for each rank and side: the most that torch's CPU allocator held at once, minus what it held before the
backward; the largest single allocation; and the growth of the process's peak resident memory (which includes other
threads, but not pages that were never written).
"""

import argparse
import json
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from comparison import aligned
from sides import PLAIN, available_sides, device, machine_line

MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    peak: int
    largest: int
    resident: int


def measure(call):
    """The memory that torch's allocator and the process take while `call` runs; on a GPU, only the allocator's peak."""
    if device() == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return Memory(torch.cuda.max_memory_allocated() - before, 0, 0)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of resident memory
    before = peak_resident()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    resident = peak_resident() - before
    changes = allocations(profile)
    held = peak = 0
    for n_bytes in changes:
        held += n_bytes
        peak = max(peak, held)
    return Memory(peak, max(changes, default=0), resident)


def allocations(profile):
    """Bytes allocated (positive) and freed (negative), in order of time."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_bytes())["traceEvents"]
    memory = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return [n_bytes for _, n_bytes in memory]


def peak_resident():
    """The peak resident memory of the process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def backward(side, n_rows, n_columns, n_ids):
    """A function that runs the backward of a lookup whose rows are replicated on every rank."""
    torch.manual_seed(0)
    weight = side.distribute(torch.rand(n_rows, n_columns), 0).requires_grad_()
    ids = side.distribute(torch.randint(n_rows, (n_ids,)), None)
    return side.full_tensor()(F.embedding(ids, weight)).sum().backward


def report(side, args):
    """One line per rank, and the largest allocation of any rank."""
    backward(side, args.rows, args.columns, args.ids)()  # what a first backward sets up is not counted
    memory = measure(backward(side, args.rows, args.columns, args.ids))
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, memory)
    lines = [(side.name, str(rank), *(f"{n / MIB:.1f}" for n in astuple(m))) for rank, m in enumerate(ranks)]
    return lines, max(m.largest for m in ranks)


def main():
    parser = argparse.ArgumentParser(description="Memory of the backward of a row-sharded embedding, by rank and side.")
    parser.add_argument("--rows", type=int, default=200_000, help="V, rows of the table (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=64, help="D, columns of the table (default: %(default)s)")
    parser.add_argument("--ids", type=int, default=4096, help="rows looked up (default: %(default)s)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    table = args.rows * args.columns * torch.get_default_dtype().itemsize
    reports = {side.name: report(side, args) for side in available_sides() if side.name != PLAIN}
    if dist.get_rank() == 0:
        sizes = f"[V, D] is {table / MIB:.1f}, a rank's rows {table / MIB / dist.get_world_size():.1f}"
        print(f"{machine_line()}; MiB during the backward; {sizes}\n")
        header = ("side", "rank", "peak", "largest allocation", "resident growth")
        print(*aligned([header, *(line for lines, _ in reports.values() for line in lines)]), "", sep="\n")
        for name, (_, largest) in reports.items():
            print(f"{name}: {'allocates [V, D]' if largest >= table else 'never allocates [V, D]'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
