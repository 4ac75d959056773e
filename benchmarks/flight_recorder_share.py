"""The flight recorder's share of an operator's instructions, counted by valgrind on one of two ranks that are threads.

    python benchmarks/flight_recorder_share.py

One operator sends nothing (an add of two sharded tensors), the other makes an all-reduce (the relu of a Partial). Between threads, an
all-reduce is a copy in memory. Over a network an all-reduce takes more instructions, and the recorder the same number, so its share is
smaller.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from sides import machine_line

import shardwise as sw
from shardwise import Partial, Shard
from shardwise.testing import run_ranks

N_CALLS = 200
OPERATORS = ("add, sends nothing", "relu of a sum, an all-reduce")


def calls_of(rank):
    """A function of the calls for each operator. Each call reduces a new Partial."""
    mesh = sw.init_device_mesh("cpu", (2,))
    x = sw.ones(64, 64, device_mesh=mesh, placements=[Shard(0)])
    terms = [sw.DTensor.from_local(torch.ones(8, 8), mesh, [Partial()]) for _ in range(2 * N_CALLS)]
    yield lambda begin: [x + x for _ in range(begin, begin + N_CALLS)]
    yield lambda begin: [torch.relu(terms[i]) for i in range(begin, begin + N_CALLS)]


def run_counted():
    """Makes the calls under valgrind: one profile per operator, only of the first rank."""

    def on_rank(rank):
        for calls in calls_of(rank):
            calls(0)
            if rank == 0:
                torch._C._valgrind_toggle()
            calls(N_CALLS)
            if rank == 0:
                torch._C._valgrind_toggle_and_dump_stats()

    run_ranks(2, on_rank)


def instructions(profile):
    """The number of all instructions, and of those in the recorder's functions and the functions that they call."""
    listing = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--show-percs=no", str(profile)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    total = int(re.search(r"([\d,]+) +PROGRAM TOTALS", listing)[1].replace(",", ""))
    recorder = re.findall(
        r"^ *([\d,]+) +\S*:shardwise::FlightRecorder::(?:begin|set_waiting|set_ended)\(", listing, re.MULTILINE
    )
    return total, sum(int(count.replace(",", "")) for count in recorder)


def main():
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/profile"]
        result = subprocess.run([*valgrind, sys.executable, __file__, "--counted"], capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit(
                f"[flight_recorder_share] valgrind ended with {result.returncode}:\n{result.stderr[-2000:]}"
            )
        print(machine_line())
        print(f"{'instructions per call':30}{'operator':>10}{'recorder':>10}{'share':>8}")
        for number, name in enumerate(OPERATORS, 1):
            total, recorder = (count / N_CALLS for count in instructions(Path(folder) / f"profile.{number}"))
            print(f"{name:30}{total:10,.0f}{recorder:10,.0f}{recorder / total:8.2%}")


if __name__ == "__main__":
    run_counted() if "--counted" in sys.argv else main()
