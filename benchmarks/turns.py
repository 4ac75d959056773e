"""Times calls of several sides in turns. A call starts behind a barrier and lasts until the slowest rank, and its device, is done."""

import time

import torch
import torch.distributed as dist
from sides import device


def ms_in_turns(calls, repeats):
    """The milliseconds of each of the `repeats` calls, by side."""
    times = torch.empty(len(calls), repeats, dtype=torch.float64)
    synchronize = torch.accelerator.synchronize if device() != "cpu" else lambda: None
    for turn in range(repeats):
        for row, call in enumerate(calls.values()):
            synchronize()
            dist.barrier()
            start = time.perf_counter_ns()
            call()
            synchronize()
            times[row, turn] = time.perf_counter_ns() - start
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return dict(zip(calls, (times / 1e6).tolist(), strict=True))


def best_ms(calls, repeats):
    """The fastest of `repeats` calls, by side."""
    return {side: min(ms) for side, ms in ms_in_turns(calls, repeats).items()}


def median(values):
    return sorted(values)[len(values) // 2]


def min_and_median(ms, base, digits):
    """Cells of a table: the minimum and the median in milliseconds, and both divided by those of the side `base`, if it is not None."""
    own, others = [[statistic(each) for statistic in (min, median)] if each else [] for each in (ms, base)]
    ratios = [f"{a / b:.2f}" for a, b in zip(own, others, strict=True)] if base else ["-", "-"]
    return [*(f"{value:.{digits}f}" for value in own), *ratios]
