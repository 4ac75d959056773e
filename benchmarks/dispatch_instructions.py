"""Instructions per call of benchmarks/dispatch's rows, counted by valgrind. A busy machine does not change these counts.

    python benchmarks/dispatch_instructions.py                          # every row, several minutes
    python benchmarks/dispatch_instructions.py --rows add --keep /tmp/profiles
    callgrind_annotate /tmp/profiles/profile.3                          # the instructions of the third count by function

Instructions are counted only while a row's calls run. Each row on each side writes its own profile.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from comparison import Comparison, render
from dispatch_rows import select_rows
from sides import available_sides, machine_line, world_of_one

N_CALLS = 100
RESOLUTION = 1  # instruction
COUNTED = "counted.json"  # [row, side, calls] of each profile, in order


def run_counted(rows, folder):
    """Makes the calls under valgrind, with one profile for each row and side. The first batch is not counted."""
    counted = []
    with world_of_one():
        for row in rows:
            for side in available_sides():
                with torch.set_grad_enabled(row.grad):
                    turn = row.calls(side, N_CALLS)
                    make(next(turn))
                    calls = next(turn)
                    torch._C._valgrind_toggle()
                    make(calls)
                    torch._C._valgrind_toggle_and_dump_stats()
                counted.append((row.label, side.name, len(calls)))
    (folder / COUNTED).write_text(json.dumps(counted))


def make(calls):
    for call in calls:
        call()


def count(patterns, folder):
    """Runs this file under valgrind; returns instructions per call by (row's label, side's name)."""
    valgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/profile"]
    program = [sys.executable, __file__, "--counted", str(folder), "--rows", *(patterns or [""])]
    result = subprocess.run([*valgrind, *program], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"[dispatch_instructions] valgrind ended with {result.returncode}:\n{result.stderr[-2000:]}")
    counted = json.loads((folder / COUNTED).read_text())
    return {(row, side): instructions(folder / f"profile.{i}") / n for i, (row, side, n) in enumerate(counted, start=1)}


def instructions(profile):
    """The number of instructions in a profile."""
    return int(re.search(r"^totals: (\d+)", profile.read_text(), re.MULTILINE).group(1))


def main():
    parser = argparse.ArgumentParser(description="Instructions per call of small operators on each side.")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose label contains one of these")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the profiles there, for callgrind_annotate")
    parser.add_argument("--counted", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()

    rows = select_rows(args.rows)
    torch.set_num_threads(1)
    if args.counted:
        return run_counted(rows, args.counted)
    if shutil.which("valgrind") is None:
        raise SystemExit("[dispatch_instructions] valgrind is not on PATH. Install the package valgrind.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        per_call = count(args.rows, folder)
    cost = {row: {side: n for (label, side), n in per_call.items() if label == row.label} for row in rows}
    print(f"{machine_line()}; instructions per call, mean of {N_CALLS} calls (of one where the shape is new)\n")
    print(render([Comparison(row, cost[row], RESOLUTION) for row in rows]))


if __name__ == "__main__":
    main()
