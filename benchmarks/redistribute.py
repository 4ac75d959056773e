"""Moves of a tensor from one layout to another: collectives by hand, torch.distributed.tensor and Shardwise in one run.

    export PYTHONPATH=build/python                                    # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/redistribute.py            # every move, about two minutes
    torchrun --nproc-per-node 4 benchmarks/redistribute.py --moves "S0 -> S1" --json redistribute.json
    python benchmarks/redistribute.py --planning                      # time to plan, without processes

Four ranks over Gloo, float32, one thread each. The sides take turns; a call starts behind a barrier and lasts until the
slowest rank has its values; the fastest of all turns counts. Bytes are counted: the bytes that the loopback interface
receives during a batch of calls, for all ranks together, minus the bytes of the batch's barriers. They include messages of
other programs, so the least of several batches counts. "x" is these bytes divided by the bound. The bound is the bytes that
ranks need and do not hold, or that reduce-scatter and all-reduce must move. "traced" is the bytes that CommDebugMode reports,
divided by the bound.
"""

import argparse
import importlib
import os
import time
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from comparison import aligned, write_json
from embedding_memory import peak_resident
from redistribute_moves import MOVES, N_RANKS, SHAPES
from sides import SHARDWISE, TORCH, machine_line, world_of_one
from turns import best_ms

import shardwise

BY_HAND = "by hand"
SIDES = (BY_HAND, TORCH, SHARDWISE)
TARGET_BYTES, TARGET_BY_HAND, TARGET_TORCH = 1.00, 1.15, 1 / 4
HEADLINE = "4096x1024 on 4: S0 -> S1"
BYTES_TOLERANCE = 0.01  # headers and acknowledgements of TCP are on the loopback, too
RESOLUTION_MS = 0.05
N_BATCHES, BATCH_CALLS = 5, 4


@dataclass
class Result:
    label: str
    bound: int  # bytes, all ranks together
    ms: dict[str, float] = field(default_factory=dict)  # by side
    ratio: dict[str, float] = field(default_factory=dict)  # bytes on the wire over the bound
    traced: float = 1.0

    def over(self, side):
        """Shardwise's time over that of `side`."""
        if side not in self.ms:
            return None
        return max(self.ms[SHARDWISE], RESOLUTION_MS) / max(self.ms[side], RESOLUTION_MS)

    def cells(self):
        sides = [cell for side in SIDES for cell in (number(self.ms.get(side)), number(self.ratio.get(side)))]
        return [
            self.label,
            f"{self.bound:,}",
            *sides,
            number(self.traced),
            number(self.over(BY_HAND)),
            number(self.over(TORCH)),
        ]


HEADER = ("move", "bound", BY_HAND, "x", TORCH, "x", SHARDWISE, "x", "traced", "/by hand", "/torch")


def number(value):
    return "-" if value is None else f"{value:.2f}"


def dense_of(shape):
    """A tensor of integers, so that sums over ranks are exact."""
    return (torch.arange(prod(shape)) % 1000).float().view(shape)


def placements(package, marks):
    words = {None: package.Replicate, "P": package.Partial}
    return [words[mark]() if mark in words else package.Shard(mark) for mark in marks]


def operand(package, move, shape):
    """The source tensor. For a Partial, the piece of rank r is (r + 1) times the dense tensor."""
    mesh = package.init_device_mesh("cpu", move.mesh)
    if move.is_partial():
        local = dense_of(shape) * (dist.get_rank() + 1)
        return package.DTensor.from_local(local, mesh, placements(package, move.source), run_check=False)
    return package.distribute_tensor(dense_of(shape), mesh, placements(package, move.source), src_data_rank=None)


def calls_of(move, shape):
    """For each side, a call without arguments that returns this rank's new piece."""
    calls = {}
    for name in (TORCH, SHARDWISE):
        package = importlib.import_module(name)
        tensor, target = operand(package, move, shape), placements(package, move.target)
        calls[name] = lambda tensor=tensor, target=target: tensor.redistribute(placements=target).to_local()
    if move.by_hand is not None:
        local = operand(shardwise, move, shape).to_local()
        calls[BY_HAND] = move.by_hand(local, shape, move)
    return {side: calls[side] for side in SIDES if side in calls}


def check(calls, move, shape):
    """Checks that all sides give the values that the layout demands."""
    mesh = shardwise.init_device_mesh("cpu", move.mesh)
    factor = sum(range(1, N_RANKS + 1)) if move.is_partial() else 1
    dense = dense_of(shape) * factor
    expected = shardwise.distribute_tensor(
        dense, mesh, placements(shardwise, move.target), src_data_rank=None
    ).to_local()
    for side, call in calls.items():
        assert torch.equal(call(), expected), (side, move.label(shape))


def loopback_bytes():
    """The bytes that the loopback interface has received since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[0])


def wire_bytes(call):
    """The bytes per call of all ranks together; equal on every rank."""

    def batch(n_calls):
        dist.barrier()
        before = loopback_bytes()
        dist.barrier()
        for _ in range(n_calls):
            call()
        dist.barrier()
        after = loopback_bytes()
        dist.barrier()
        return after - before

    call()
    quiet = min(batch(0) for _ in range(N_BATCHES))
    busy = min(batch(BATCH_CALLS) for _ in range(N_BATCHES))
    n_bytes = torch.tensor([max(busy - quiet, 0) / BATCH_CALLS])
    dist.broadcast(n_bytes, 0)
    return n_bytes.item()


def over_bound(n_bytes, bound):
    """The bytes divided by the bound. If nothing must be sent, 1 means that nothing was sent."""
    return n_bytes / bound if bound else (1.0 if n_bytes < 10_000 else float("inf"))


def measure(move, shape, repeats):
    calls = calls_of(move, shape)
    check(calls, move, shape)
    tensor = operand(shardwise, move, shape)
    plan = shardwise.plan_redistribution(tensor, placements(shardwise, move.target))
    result = Result(move.label(shape), plan.bound, best_ms(calls, repeats))
    for side, call in calls.items():
        result.ratio[side] = over_bound(wire_bytes(call), plan.bound)
    with shardwise.CommDebugMode() as comm:
        calls[SHARDWISE]()
    traced = torch.tensor([comm.bytes_received()])
    dist.all_reduce(traced)
    result.traced = over_bound(traced.item(), plan.bound)
    return result


def summary(results):
    worst = max(results, key=lambda r: max(r.ratio[SHARDWISE], r.traced))
    ratio = max(worst.ratio[SHARDWISE], worst.traced)
    slowest = max(results, key=lambda r: r.over(TORCH))
    lines = [
        f"bytes over bound: worst {ratio:.2f} ({worst.label}); target {TARGET_BYTES:.2f}, "
        f"{verdict(ratio <= TARGET_BYTES + BYTES_TOLERANCE)}",
        f"time over torch's: worst {slowest.over(TORCH):.2f} ({slowest.label}); target 1.00, "
        f"{verdict(slowest.over(TORCH) <= 1)}",
    ]
    for r in results:
        if r.label == HEADLINE:
            lines.append(
                f"{r.label}: {r.over(BY_HAND):.2f} of by hand, target {TARGET_BY_HAND:.2f}, "
                f"{verdict(r.over(BY_HAND) <= TARGET_BY_HAND)}; {r.over(TORCH):.2f} of torch's, target {TARGET_TORCH:.2f}, "
                f"{verdict(r.over(TORCH) <= TARGET_TORCH)}"
            )
    return lines


def verdict(is_reached):
    return "reached" if is_reached else "missed"


def compare(args):
    dist.init_process_group("gloo")
    assert dist.get_world_size() == N_RANKS, f"start it with torchrun --nproc-per-node {N_RANKS}"
    cases = [(move, shape) for shape in SHAPES for move in MOVES]
    if args.moves:
        cases = [(m, s) for m, s in cases if any(words in m.label(s) for words in args.moves)]
    results = [measure(move, shape, args.repeats) for move, shape in cases]
    if dist.get_rank() == 0:
        print(
            f"{machine_line()}, {N_RANKS} Gloo ranks on {os.cpu_count()} cores; ms per move, fastest of {args.repeats}\n"
        )
        print(*aligned([HEADER, *(r.cells() for r in results)]), "", *summary(results), sep="\n")
        write_json(args.json, {"rows": [vars(r) for r in results], "summary": summary(results)})
    dist.destroy_process_group()


def best_us(call, repeats, per_batch=1):
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(per_batch):
            call()
        best = min(best, (time.perf_counter_ns() - start) / per_batch / 1e3)
    return best


def miss_on_paper(shape, mesh, source, target):
    """A call that makes a plan and computes rank 0's part of it."""
    before, after = (shardwise.Layout(shape, mesh, placements(shardwise, marks)) for marks in (source, target))
    return lambda: shardwise.plan_redistribution(before, after).traffic(0)


def hit_of_a_slice():
    """A call that finds its plan in the cache and sends nothing."""
    mesh = shardwise.init_device_mesh("cpu", (1,))
    tensor = shardwise.ones(4, 4, device_mesh=mesh, placements=[shardwise.Replicate()])
    target = [shardwise.Shard(0)]
    return lambda: tensor.redistribute(placements=target)


def simulation():
    """Seconds and bytes of resident memory that 65,536 ranks take."""
    layouts = [
        shardwise.Layout((1 << 20, 1 << 14), (256, 256), placements(shardwise, marks)) for marks in ((0, 1), (1, 0))
    ]
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of resident memory
    resident, start = peak_resident(), time.perf_counter()
    n_ranks = len(shardwise.plan_redistribution(*layouts).simulate())
    assert n_ranks == 256 * 256
    return time.perf_counter() - start, peak_resident() - resident


def planning(args):
    with world_of_one(), torch.no_grad():
        eight = best_us(miss_on_paper((4096, 1024), (2, 4), (0, 1), (1, 0)), args.repeats)
        cube = best_us(miss_on_paper((1024, 1024, 1024), (16, 16, 16), (0, 1, 2), (1, 2, 0)), args.repeats)
        before = shardwise.redistribution_counters().plan_misses
        hit = best_us(hit_of_a_slice(), args.repeats, per_batch=100)
        misses = shardwise.redistribution_counters().plan_misses - before
    seconds, n_bytes = simulation()
    lines = [
        ("figure", "measured", "target", ""),
        ("miss: plan and one rank's part, 2x4 ranks", f"{eight:.1f} us", "50 us", verdict(eight < 50)),
        ("miss: plan and one rank's part, 16x16x16 ranks", f"{cube / 1e3:.3f} ms", "5 ms", verdict(cube < 5e3)),
        (f"hit: redistribute of a local slice, whole call ({misses} miss)", f"{hit:.2f} us", "-", ""),
        ("simulate, 65,536 ranks: time", f"{seconds:.1f} s", "60 s", verdict(seconds < 60)),
        (
            "simulate, 65,536 ranks: resident memory",
            f"{n_bytes / 2**20:.0f} MiB",
            "1,024 MiB",
            verdict(n_bytes < 2**30),
        ),
    ]
    print(f"{machine_line()}\n", *aligned(lines), sep="\n")
    write_json(args.json, {"rows": lines[1:]})


def main():
    parser = argparse.ArgumentParser(description="Redistributions on each side: time and bytes on the wire.")
    parser.add_argument("--planning", action="store_true", help="what planning costs instead; one process")
    parser.add_argument("--moves", nargs="+", metavar="TEXT", help="only moves whose label contains one of these")
    parser.add_argument("--repeats", type=int, default=40, help="turns of each side (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()
    torch.set_num_threads(1)
    (planning if args.planning else compare)(args)


if __name__ == "__main__":
    main()
