"""Forward and backward of operators and layers on a DTensor of one rank, beside the plain tensor and torch.distributed.tensor.

    export PYTHONPATH=build/python                 # where Shardwise is built and not installed
    python benchmarks/one_rank.py                  # every row, about six minutes
    python benchmarks/one_rank.py --rows norm      # the rows whose name contains the word
    python benchmarks/one_rank.py --json FILE      # the figures there, too

One process, one thread, operands of about 4 MB. The sides take turns. A ratio divides a side's time by the plain tensor's: 1.00 is no
cost. "kept" is the memory that the forward keeps for the backward, in bytes, as a ratio, too: each memory once, the operands among it.
"""

import argparse
import functools
import gc
import warnings

import torch
from comparison import above_target, add_row_arguments, aligned, is_chosen, write_json
from one_rank_rows import ROWS
from sides import PLAIN, SHARDWISE, TORCH, available_sides, calls_of, machine_line, world_of_one
from torch.utils._pytree import tree_leaves
from turns import in_turns_for, ms_of, ratios

TARGET = 1.05  # of the plain tensor's time, at most


class Call:
    """One row on one side: operands, and what a turn runs."""

    def __init__(self, row, side):
        torch.manual_seed(0)
        made = [(operand.make(), operand.dim) for operand in row.operands]
        self.function = row.call
        self.operands = [side.distribute(data, dim).requires_grad_(data.is_floating_point()) for data, dim in made]
        self.leaves = [operand for operand in self.operands if operand.requires_grad]
        outputs = self.differentiable(self.forward())
        self.gradients = [None if out.dim() == 0 else torch.ones_like(out) for out in outputs]

    def forward(self):
        torch.manual_seed(0)
        return self.function(*self.operands)

    @staticmethod
    def differentiable(result):
        return [out for out in tree_leaves(result) if isinstance(out, torch.Tensor) and out.requires_grad]

    def __call__(self):
        outputs = self.differentiable(self.forward())
        if outputs:
            torch.autograd.grad(outputs, self.leaves, self.gradients, allow_unused=True)

    def kept_bytes(self):
        storages = {}

        def pack(tensor):
            local = getattr(tensor, "_local_tensor", tensor)
            storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = self.forward()
        del result
        return sum(storages.values())


def compare(row, sides, seconds):
    """Times of the calls of each side, in turns for `seconds`, and the bytes kept. A side that refuses the row has none."""
    calls = calls_of(sides, functools.partial(Call, row))
    kept = {name: call.kept_bytes() for name, call in calls.items()}
    return ms_of(in_turns_for(calls, seconds)), kept


def cells(row, times, kept):
    found = [row.name, f"{min(times[PLAIN]):.3f}"]
    for name in (TORCH, SHARDWISE):
        if name in times:
            found += ratios(times[name], times[PLAIN])
            found.append(f"{kept[name] / kept[PLAIN]:.2f}" if kept[PLAIN] else str(kept[name]))
        else:
            found += ["-"] * 3
    return found


def main():
    parser = argparse.ArgumentParser(
        description="Forward and backward on one rank, as ratios of the plain tensor's time."
    )
    add_row_arguments(parser, seconds=1.0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [row for row in ROWS if is_chosen(row.name, args)]
    with world_of_one():
        sides = available_sides()
        gc.disable()
        figures = {row.name: compare(row, sides, args.seconds) for row in rows}
    lines = [cells(row, *figures[row.name]) for row in rows]
    header = ["row", "plain ms", "torch min", "median", "kept", "shardwise min", "median", "kept"]
    print(f"{machine_line()}; forward and backward, ratios to the plain tensor\n")
    print("\n".join(aligned([header, *lines])))
    best = {name: min(times[SHARDWISE]) / min(times[PLAIN]) for name, (times, _) in figures.items()}
    print(f"\n{above_target(best, TARGET)}")
    write_json(args.json, {"rows": {name: {"ms": times, "kept": kept} for name, (times, kept) in figures.items()}})


if __name__ == "__main__":
    main()
