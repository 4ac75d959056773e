"""Random fills of a DTensor of one rank, beside the plain tensor and torch.distributed.tensor: time per element.

    export PYTHONPATH=build/python                       # where Shardwise is built and not installed
    python benchmarks/random_fills.py                    # every row, about a minute
    python benchmarks/random_fills.py --rows normal      # the rows whose name contains the word

One process, one thread, 1,048,576 elements. The sides take turns. A ratio divides a side's time by the plain tensor's.
"""

import argparse
import time
import warnings
from functools import partial

import torch
from comparison import aligned
from sides import PLAIN, SHARDWISE, TORCH, available_sides, machine_line, world_of_one
from turns import median, ms_in_turns

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
    calls = {}
    for side in sides:
        call = partial(fill, side.distribute(torch.zeros(SHAPE, dtype=dtype), 0))
        try:
            call()
        except Exception:
            if side.name != TORCH:
                raise
        else:
            calls[side.name] = call
    start = time.monotonic()
    ms_in_turns(calls, repeats=1)
    return ms_in_turns(calls, max(5, round(seconds / (time.monotonic() - start))))


def cells(name, times):
    n = torch.Size(SHAPE).numel()
    found = [name]
    for side in (PLAIN, TORCH, SHARDWISE):
        found.append(f"{min(times[side]) * 1e6 / n:.2f}" if side in times else "-")
    for side in (TORCH, SHARDWISE):
        found += [f"{ratio(times, side, of):.2f}" if side in times else "-" for of in (min, median)]
    return found


def ratio(times, side, of):
    return of(times[side]) / of(times[PLAIN])


def main():
    parser = argparse.ArgumentParser(description="Time per element of random fills on one rank.")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row (default: %(default)s)")
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = {name: row for name, row in ROWS.items() if not args.rows or any(text in name for text in args.rows)}
    with world_of_one():
        sides = available_sides()
        figures = {name: compare(*row, sides, args.seconds) for name, row in rows.items()}
    header = ["row", "plain ns", "torch", "shardwise", "torch min", "median", "shardwise min", "median"]
    print(f"{machine_line()}; ns per element, and ratios to the plain tensor\n")
    print("\n".join(aligned([header, *(cells(name, times) for name, times in figures.items())])))
    above = [name for name, times in figures.items() if ratio(times, SHARDWISE, min) > TARGET]
    print(f"\n{len(rows)} rows, {len(above)} above {TARGET}: {', '.join(above) or 'none'}")


if __name__ == "__main__":
    main()
