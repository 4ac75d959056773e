"""Random fills of a DTensor of one rank, beside the plain tensor and torch.distributed.tensor: time per element.

    export PYTHONPATH=build/python                       # where Shardwise is built and not installed
    python benchmarks/random_fills.py                    # every row, about a minute
    python benchmarks/random_fills.py --rows normal      # the rows whose name contains the word

One process, one thread, 1,048,576 elements. The sides take turns. A ratio divides a side's time by the plain tensor's.
"""

import argparse
import warnings
from functools import partial

import torch
from comparison import above_target, add_row_arguments, aligned, is_chosen
from sides import PLAIN, SHARDWISE, TORCH, available_sides, calls_of, machine_line, world_of_one
from turns import in_turns_for, ms_of, ratios

TARGET = 1.2  # of the plain tensor's time, at most
SHAPE = (1024, 1024)
FLOATS = (torch.float32, torch.bfloat16, torch.float64)

# name: what is called on a tensor, dtypes
FILLS = {
    "uniform_": (torch.Tensor.uniform_, FLOATS),
    "normal_": (torch.Tensor.normal_, FLOATS),
    "bernoulli_(0.3)": (lambda x: x.bernoulli_(0.3), FLOATS),
    "random_": (torch.Tensor.random_, (*FLOATS, torch.int32, torch.int64)),
    "random_(100)": (lambda x: x.random_(100), (*FLOATS, torch.int32, torch.int64)),
    "dropout": (lambda x: torch.dropout(x, 0.1, train=True), FLOATS),
    "exponential_": (torch.Tensor.exponential_, FLOATS),
    "log_normal_": (torch.Tensor.log_normal_, FLOATS),
    "geometric_(0.3)": (lambda x: x.geometric_(0.3), FLOATS),
    "cauchy_": (torch.Tensor.cauchy_, FLOATS),
}
ROWS = {
    f"{name} {str(dtype).removeprefix('torch.')}": (fill, dtype)
    for name, (fill, dtypes) in FILLS.items()
    for dtype in dtypes
}


def compare(fill, dtype, sides, seconds):
    """The times of each side that knows the fill, in turns for `seconds`."""
    calls = calls_of(sides, lambda side: partial(fill, side.distribute(torch.zeros(SHAPE, dtype=dtype), 0)))
    return ms_of(in_turns_for(calls, seconds))


def cells(name, times):
    n = torch.Size(SHAPE).numel()
    found = [name]
    for side in (PLAIN, TORCH, SHARDWISE):
        found.append(f"{min(times[side]) * 1e6 / n:.2f}" if side in times else "-")
    for side in (TORCH, SHARDWISE):
        found += ratios(times[side], times[PLAIN]) if side in times else ["-", "-"]
    return found


def main():
    parser = argparse.ArgumentParser(description="Time per element of random fills on one rank.")
    add_row_arguments(parser, seconds=1.0)
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = {name: row for name, row in ROWS.items() if is_chosen(name, args)}
    with world_of_one():
        sides = available_sides()
        figures = {name: compare(*row, sides, args.seconds) for name, row in rows.items()}
    header = ["row", "plain ns", "torch", "shardwise", "torch min", "median", "shardwise min", "median"]
    print(f"{machine_line()}; ns per element, and ratios to the plain tensor\n")
    print("\n".join(aligned([header, *(cells(name, times) for name, times in figures.items())])))
    best = {name: min(times[SHARDWISE]) / min(times[PLAIN]) for name, times in figures.items()}
    print(f"\n{above_target(best, TARGET)}")


if __name__ == "__main__":
    main()
