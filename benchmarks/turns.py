"""Times calls of several sides in turns. A call starts behind a barrier and lasts until the slowest rank, and its device, is done."""

import gc
import random
import time

import torch
import torch.distributed as dist
from sides import device


def orders(sides):
    """Endless orders of `sides`, the same on all ranks. No side follows itself: it alone would find its operands in the processor's cache."""
    order, draws = list(sides), random.Random(0)
    while True:
        yield order
        last = order[-1]
        order = draws.sample(order, len(order))
        while len(order) > 1 and order[0] == last:
            order = draws.sample(order, len(order))


def in_turns(calls, repeats, prepare=lambda side: None):
    """By side, the milliseconds of each of the `repeats` calls, and the CPU milliseconds that they took, as a mean over the ranks. `prepare(side)`
    is called before each call and not timed."""
    times = torch.empty(2, len(calls), repeats, dtype=torch.float64)
    synchronize = torch.accelerator.synchronize if device() != "cpu" else lambda: None
    rows = {side: row for row, side in enumerate(calls)}
    for turn, order in zip(range(repeats), orders(calls)):
        for side in order:
            row = rows[side]
            prepare(side)
            synchronize()
            dist.barrier()
            start = time.perf_counter_ns(), time.process_time_ns()
            calls[side]()
            synchronize()
            times[0, row, turn] = time.perf_counter_ns() - start[0]
            times[1, row, turn] = time.process_time_ns() - start[1]
    dist.all_reduce(times[0], dist.ReduceOp.MAX)
    dist.all_reduce(times[1], dist.ReduceOp.SUM)
    times[1] /= dist.get_world_size()
    return {side: ((times[0, row] / 1e6).tolist(), (times[1, row] / 1e6).tolist()) for row, side in enumerate(calls)}


def in_turns_for(calls, seconds):
    """in_turns() for about `seconds`, five times at least. Two turns before them are not counted."""
    start = time.monotonic()
    in_turns(calls, 2)
    repeats = torch.tensor(max(5, round(2 * seconds / (time.monotonic() - start))))
    dist.broadcast(repeats, 0)
    gc.collect()
    return in_turns(calls, int(repeats))


def ms_of(times):
    """The milliseconds of each call, by side, of what in_turns() returns."""
    return {side: ms for side, (ms, _) in times.items()}


def ms_in_turns(calls, repeats):
    """The milliseconds of each of the `repeats` calls, by side."""
    return ms_of(in_turns(calls, repeats))


def best_ms(calls, repeats):
    """The fastest of `repeats` calls, by side."""
    return {side: min(ms) for side, ms in ms_in_turns(calls, repeats).items()}


def median(values):
    return sorted(values)[len(values) // 2]


def ratios(ms, base):
    """Cells of a table: the minimum and the median, divided by those of the side `base`."""
    return [f"{statistic(ms) / statistic(base):.2f}" for statistic in (min, median)]


def min_and_median(ms, base, digits):
    """Cells of a table: the minimum and the median in milliseconds, and their ratios to the side `base`, if it is not None."""
    own = [f"{statistic(ms):.{digits}f}" for statistic in (min, median)]
    return [*own, *(ratios(ms, base) if base else ["-", "-"])]
