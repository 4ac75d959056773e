"""Writes docs/what_it_costs.md: each benchmark's command, and what it printed.

export PYTHONPATH=build/python                           # where Shardwise is built and not installed
python benchmarks/what_it_costs.py                       # runs every benchmark of the page, about 20 minutes on two idle cores
python benchmarks/what_it_costs.py --only dispatch tax   # runs these; the other sections stay as they are
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent / "docs" / "what_it_costs.md"
ONE, FOUR = "python", "torchrun --nproc-per-node 4"

HEAD = """# What it costs

This page is written by `benchmarks/what_it_costs.py`. Do not edit it.

Each section shows a benchmark's command and what it printed. All sides of a table ran in turns in one process, or on the same ranks. So a
busy machine disturbs all sides alike: read ratios, and compare no times of different sections. "by hand" is the program that a user writes
without DTensors: plain tensors and collectives. [Performance](performance.md) has the measurements that need more words, and those on a GPU.
"""


@dataclass(frozen=True)
class Section:
    name: str  # the benchmark's file, without its folder and suffix
    title: str
    about: str
    launcher: str
    arguments: str = ""

    @property
    def command(self):
        return f"{self.launcher} benchmarks/{self.name}.py {self.arguments}".rstrip()

    def text(self, output):
        return f"## {self.title}\n\n{self.about}\n\n`{self.command}`:\n\n```text\n{output.strip()}\n```\n"

    def run(self):
        print(f"[what_it_costs] {self.command}", flush=True)
        program = (
            [sys.executable, "-m", "torch.distributed.run", *self.launcher.split()[1:]]
            if self.launcher == FOUR
            else [sys.executable]
        )
        command = [*program, str(FOLDER / f"{self.name}.py"), *self.arguments.split()]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


SECTIONS = (
    Section(
        "dispatch",
        "A call",
        'The time of a call on small operands. "adds" is what a side adds to the plain tensor\'s time; "ratio" divides what Shardwise adds by what\n'
        'torch.distributed.tensor adds. A side adds at least 0.01 us and 1 % of the plain call. "empty subclass" is a Python subclass of torch.Tensor\n'
        "that does nothing, with plain results: what it adds is the time of torch's argument parser, which checks each operand of a class of its own,\n"
        "and each element of a list. Steps of Adam add less: they take lists of this rank's pieces, which are plain tensors.",
        ONE,
    ),
    Section(
        "one_rank",
        "One rank's work",
        'Forward and backward of operators and layers with operands of 4 MB, on one rank. Ratios divide by the plain tensor\'s time. "kept" is the\n'
        "memory that the forward keeps for the backward.",
        ONE,
        "--seconds 0.5",
    ),
    Section("random_fills", "Random numbers", "Fills of a million elements on one rank.", ONE),
    Section("redistribute", "Moves", "One layout to another, on four ranks.", FOUR),
    Section(
        "four_ranks",
        "Operators along sharded dims",
        'Forward and backward on four ranks, beside the program by hand. "cpu" divides the CPU times of all ranks.',
        FOUR,
    ),
    Section(
        "tax",
        "A tensor-parallel training step",
        "Forward, backward and AdamW of a transformer of 4 layers on four ranks, beside the program by hand.",
        FOUR,
        "--widths 64 256 512 --lengths 128",
    ),
    Section(
        "fully_shard",
        "A fully sharded training step",
        "Forward, backward and AdamW of a transformer of 12 layers on four ranks, beside torch's FSDP2 and flat buffers by hand.",
        FOUR,
        "--widths 64 256 --turns 8",
    ),
    Section(
        "host_time",
        "Around operators",
        "What frameworks call for each parameter or layer, on four ranks.",
        FOUR,
        "--seconds 1",
    ),
)


def known_outputs():
    """By section's title: what the page shows now."""
    page = PAGE.read_text() if PAGE.exists() else ""
    return dict(re.findall(r"^## (.*?)\n.*?```text\n(.*?)```", page, re.MULTILINE | re.DOTALL))


def main():
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description="Writes docs/what_it_costs.md from the benchmarks' output.")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="run only these")
    args = parser.parse_args()
    outputs = known_outputs()
    for section in SECTIONS:
        if section.name in args.only:
            outputs[section.title] = section.run()
    texts = [section.text(outputs[section.title]) for section in SECTIONS if section.title in outputs]
    PAGE.write_text("\n".join([HEAD, *texts]))


if __name__ == "__main__":
    main()
