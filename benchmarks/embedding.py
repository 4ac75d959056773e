"""Lookups in an embedding table sharded by rows over four ranks, forward and backward: by hand, torch.distributed.tensor, TorchRec, Shardwise.

    export PYTHONPATH=build/python                             # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/embedding.py        # every table, about two minutes
    torchrun --nproc-per-node 4 benchmarks/embedding.py --tables pooled --ids zipf --side shardwise TorchRec
    python benchmarks/embedding.py --kernel                    # the lookup of one rank, without messages (embedding_kernel.py)

A table of 200,000 rows of 64 float32, 4096 samples of 20 ids, uniform or by Zipf's law with exponent 1.05.

    unpooled, batch sharded    each rank has the ids of its samples, and gets their rows
    unpooled, replicated       each rank has all ids, and gets all rows
    pooled, batch sharded      each rank gets the sum of rows of each of its samples
    memory                     peaks with two numbers of rows

Four ranks over Gloo, one thread each. A call is a forward and a backward; it starts behind a barrier and lasts until the slowest
rank is done. The sides take turns, and the fastest of all turns counts. Memory is the peak of the resident memory in a call minus
the resident memory before it (free memory is returned to the system first): on the rank with the most, and the least of some calls.
It includes the results and gradients that the caller gets, but not the table and the ids. First, the results and gradients of every
side are compared with the dense ones. TorchRec's side runs if TorchRec is installed (see embedding_torchrec.py).
"""

import argparse
import ctypes
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from comparison import aligned, write_json
from embedding_kernel import compare_kernels
from embedding_memory import MIB, peak_resident
from embedding_problem import Problem, draw_ids
from embedding_sides import (
    BY_HAND,
    FUSED,
    TORCHREC,
    has_fused_optimizers,
    package,
    pooled_sides,
    torchrec,
    unpooled_sides,
)
from redistribute import number, verdict
from sides import SHARDWISE, TORCH, machine_line
from turns import best_ms

N_RANKS, N_ROWS, N_COLUMNS, IDS_SHAPE = 4, 200_000, 64, (4096, 20)
TABLES = ("unpooled", "replicated", "pooled", "memory")
TARGET_BY_HAND, TARGET_TORCH, TARGET_POOLED, TARGET_TORCHREC = 1.1, 1 / 4, 1.0, 1.0
WITHOUT_UNIQUE = f"{BY_HAND}: all_to_all"
FUSED_LABEL = "FusedSGD"
TARGET_GROWTH = 4 * MIB  # of the peak, from the lower table to the higher one: peaks of one table differ by as much
MEMORY_CALLS = 5


def check(call, dense_result, dense_grad):
    result, grad = call()
    torch.testing.assert_close(result.view_as(dense_result), dense_result, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grad() if callable(grad) else grad, dense_grad, rtol=1e-4, atol=1e-3)


def checked_calls(sides, problem):
    """The calls by name. Each has run once, and its results equal those of the dense computation."""
    calls, dense = {}, problem.dense()
    for name, build in sides.items():
        calls[name] = build(problem)
        try:
            check(calls[name], *dense)
        except AssertionError as error:
            raise AssertionError(f"{name} on rank {dist.get_rank()}: {error}") from None
    return calls


def peak_over_base(call):
    """The peak of a call in bytes, on the rank with the most; the least of some calls."""
    peaks = torch.zeros(MEMORY_CALLS)
    for i in range(MEMORY_CALLS):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        dist.barrier()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of resident memory
        base = peak_resident()
        results = call()
        peaks[i] = peak_resident() - base
        del results
    dist.all_reduce(peaks, dist.ReduceOp.MAX)
    return peaks.min().item()


def selected(sides, words):
    return {name: side for name, side in sides.items() if not words or any(word in name for word in words)}


def best_by_hand(ms):
    return min((time for name, time in ms.items() if name.startswith(BY_HAND)), default=None)


def over(time, other):
    return None if time is None or other is None else time / other


def measure(title, sides, problem, args):
    """Prints a table, and returns times and bytes by side."""
    calls = checked_calls(selected(sides, args.side), problem)
    ms = best_ms(calls, args.repeats)
    peak = {name: peak_over_base(call) for name, call in calls.items()}
    hand, theirs = best_by_hand(ms), ms.get(TORCH)
    lines = [
        (
            name,
            number(ms[name]),
            f"{peak[name] / MIB:.1f}",
            number(over(ms[name], hand)),
            number(over(ms[name], theirs)),
        )
        for name in calls
    ]
    say("", *aligned([(title, "ms", "peak MiB", "/best by hand", "/torch"), *lines]))
    return {"title": title, "ms": ms, "peak": peak}


def say(*lines):
    if dist.get_rank() == 0 and lines:
        print(*lines, sep="\n", flush=True)


def compare_with(figure, name, other, target):
    """A line about the side `name`, if both sides were measured."""
    ms = figure["ms"]
    time, reference = ms.get(name), best_by_hand(ms) if other == BY_HAND else ms.get(other)
    if time is None or reference is None:
        return []
    ratio, words = time / reference, "the best by hand" if other == BY_HAND else other
    return [f"  {name}: {ratio:.2f} of {words}, target {target:.2f}, {verdict(ratio <= target)}"]


def unpooled(args, kind, is_batch_sharded):
    ids = draw_ids(kind, N_ROWS, IDS_SHAPE)
    problem = Problem(N_ROWS, N_COLUMNS, ids, is_pooled=False, is_batch_sharded=is_batch_sharded)
    title = f"unpooled, {'batch sharded' if is_batch_sharded else 'replicated'}, {kind} ids"
    figure = measure(title, unpooled_sides(is_batch_sharded), problem, args)
    say(*compare_with(figure, SHARDWISE, BY_HAND, TARGET_BY_HAND))
    if kind == "zipf" and is_batch_sharded:
        say(*compare_with(figure, SHARDWISE, WITHOUT_UNIQUE, 1.0))
    say(*compare_with(figure, SHARDWISE, TORCH, TARGET_TORCH))
    return figure


def pooled(args, kind):
    problem = Problem(N_ROWS, N_COLUMNS, draw_ids(kind, N_ROWS, IDS_SHAPE), is_pooled=True, is_batch_sharded=True)
    figure = measure(f"pooled, batch sharded, {kind} ids", pooled_sides(), problem, args)
    say(*compare_with(figure, SHARDWISE, BY_HAND, TARGET_POOLED))
    say(*compare_with(figure, FUSED, TORCHREC, TARGET_TORCHREC))
    if not torchrec.is_installed():
        say(f"  TorchRec: {torchrec.HOW_TO_INSTALL}")
    return figure


def memory(args, kind):
    """With a fused optimizer, the memory of a call must not depend on the number of rows of the table."""
    figure = {"title": f"memory, {kind} ids", "peak": {}}
    lines = []
    for label, is_pooled, is_fused in (
        (f"unpooled, {FUSED_LABEL}", False, True),
        (f"pooled, {FUSED_LABEL}", True, True),
        ("pooled, dense gradient", True, False),
    ):
        if is_fused and not has_fused_optimizers():
            continue
        peaks = []
        for n_rows in args.heights:
            # The same ids, spread over the table: each rank owns as many of them.
            ids = draw_ids(kind, min(args.heights), IDS_SHAPE) * (n_rows // min(args.heights))
            problem = Problem(n_rows, N_COLUMNS, ids, is_pooled, True)
            call = package(SHARDWISE, is_fused=is_fused)(problem)
            call()
            peaks.append(peak_over_base(call))
        figure["peak"][label] = peaks
        lines.append((label, *(f"{peak / MIB:.1f}" for peak in peaks), f"{(peaks[-1] - peaks[0]) / MIB:+.1f}"))
    heights = [f"{n_rows:,} rows" for n_rows in args.heights]
    say("", *aligned([(f"{figure['title']}: peak MiB", *heights, "difference"), *lines]))
    for label, (low, high) in figure["peak"].items():
        if FUSED_LABEL in label:
            say(
                f"  {label}: target {TARGET_GROWTH / MIB:.0f} MiB of difference, {verdict(high - low <= TARGET_GROWTH)}"
            )
    return figure


def compare(args):
    dist.init_process_group("gloo")
    assert dist.get_world_size() == N_RANKS, f"start it with torchrun --nproc-per-node {N_RANKS}"
    say(
        f"{machine_line()}, {N_RANKS} Gloo ranks on {os.cpu_count()} cores; V={N_ROWS:,}, D={N_COLUMNS}, "
        f"ids {'x'.join(map(str, IDS_SHAPE))}; ms per forward and backward, fastest of {args.repeats}"
    )
    figures = []
    for kind in args.ids:
        if "unpooled" in args.tables:
            figures.append(unpooled(args, kind, is_batch_sharded=True))
        if "replicated" in args.tables:
            figures.append(unpooled(args, kind, is_batch_sharded=False))
        if "pooled" in args.tables:
            figures.append(pooled(args, kind))
    if "memory" in args.tables:
        figures.append(memory(args, args.ids[0]))
    if dist.get_rank() == 0:
        write_json(args.json, {"figures": figures})
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="Lookups in a table sharded by rows, on each side: time and memory.")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="only these (default: all)")
    parser.add_argument("--ids", nargs="+", choices=("uniform", "zipf"), default=("uniform", "zipf"))
    parser.add_argument("--side", nargs="+", metavar="TEXT", help="only sides whose name contains one of these")
    parser.add_argument("--repeats", type=int, default=40, help="turns of each side (default: %(default)s)")
    parser.add_argument("--heights", nargs=2, type=int, default=(N_ROWS, 10 * N_ROWS), metavar="V", help="for memory")
    parser.add_argument("--quick", action="store_true", help="5 turns, small tables for memory: does it run?")
    parser.add_argument("--kernel", action="store_true", help="the lookup of one rank instead; one process")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.heights = 5, (20_000, 40_000)
    torch.set_num_threads(1)
    (compare_kernels if args.kernel else compare)(args)


if __name__ == "__main__":
    main()
