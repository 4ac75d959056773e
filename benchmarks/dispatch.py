"""Per-call microseconds of small operators: plain tensors, an empty subclass of torch.Tensor, torch.distributed.tensor and Shardwise side by side.

    export PYTHONPATH=build/python                      # where Shardwise is built and not installed
    python benchmarks/dispatch.py                       # every row, about a minute
    python benchmarks/dispatch.py --rows linear Adam    # the rows whose label contains either word
    python benchmarks/dispatch.py --json dispatch.json

    python benchmarks/dispatch.py --device cuda         # on a GPU: the host's time for a call, without the kernels

One process, one thread, a world of one rank, [4, 4] floats: most of the time is spent on the way to the kernel. The
sides take turns in short batches, and the fastest batch of each counts, so a busy machine disturbs all sides alike.
"""

import argparse
import gc
import time

import torch
from comparison import Comparison, render, summary, write_json
from dispatch_rows import select_rows
from sides import Subclass, available_sides, machine_line, use_device, world_of_one

BATCH_US = 200  # a batch is short enough to fall between two interruptions
RESOLUTION_US = 0.01


def batch_us(calls):
    """Microseconds per call."""
    start = time.perf_counter_ns()
    for call in calls:
        call()
    return (time.perf_counter_ns() - start) / len(calls) / 1e3


def batches(row, side):
    """The row's calls in batches of about BATCH_US."""
    trial = min(batch_us(next(row.calls(side, 10))) for _ in range(2))
    return row.calls(side, max(1, round(BATCH_US / trial)))


def compare(row, sides, repeats):
    """The fastest of `repeats` batches on each side, taken in turns."""
    with torch.set_grad_enabled(row.grad):
        turns = {side.name: batches(row, side) for side in sides}
        cost = {name: batch_us(next(turn)) for name, turn in turns.items()}
        for _ in range(repeats - 1):
            for name, turn in turns.items():
                cost[name] = min(cost[name], batch_us(next(turn)))
    gc.collect()
    return Comparison(row, cost, RESOLUTION_US)


def main():
    parser = argparse.ArgumentParser(description="Per-call microseconds of small operators on each side.")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose label contains one of these")
    parser.add_argument("--repeats", type=int, default=200, help="batches per row and side (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()

    rows = select_rows(args.rows)
    torch.set_num_threads(1)
    use_device(args.device)
    with world_of_one():
        sides = [*available_sides(), Subclass()]
        gc.disable()
        comparisons = [compare(row, sides, args.repeats) for row in rows]
    print(f"{machine_line()}; microseconds per call, fastest of {args.repeats} batches\n")
    print(render(comparisons))
    figures = {"rows": [c.as_json() for c in comparisons], "summary": summary(comparisons)}
    write_json(args.json, {"unit": "us", **figures})


if __name__ == "__main__":
    main()
