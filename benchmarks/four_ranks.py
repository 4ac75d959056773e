"""Forward and backward of operators along sharded dims: Shardwise, the program written by hand, and torch.distributed.tensor.

    export PYTHONPATH=build/python                                            # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/four_ranks.py                      # every row, about two minutes
    torchrun --nproc-per-node 4 benchmarks/four_ranks.py --rows norm          # the rows whose name contains the word
    torchrun --nproc-per-node 4 benchmarks/four_ranks.py --json FILE          # the figures there, too

Gloo, one thread a rank. "by hand" is four_ranks_by_hand.py: local tensors, collectives, autograd Functions. Results and gradients have the
same layouts on all sides, and are compared before they are timed. The sides take turns; a call lasts until the slowest rank is done. Ratios
divide by the side by hand, the minimum by the minimum and the median by the median. "cpu" is the CPU time of all ranks' processes.
"""

import argparse
import warnings

import torch
import torch.distributed as dist
from comparison import above_target, add_row_arguments, aligned, is_chosen, write_json
from four_ranks_rows import EVEN, UNEVEN, part_of, rows
from sides import SHARDWISE, TORCH, available_sides, machine_line
from torch.utils._pytree import tree_leaves
from turns import in_turns_for, median, ratios

BY_HAND = "by hand"
TARGET = 1.0  # of the time by hand, at most


def differentiable(tensors):
    return [each for each in tensors if each.requires_grad]


class Call:
    """A row on one side: its operands, and what a turn runs. Gradients of results are fixed random numbers."""

    def __init__(self, row):
        torch.manual_seed(0)
        self.row = row
        self.wholes = [operand.make() for operand in row.operands]
        self.operands = [
            self.laid_out(whole, operand.dim).requires_grad_(whole.is_floating_point())
            for whole, operand in zip(self.wholes, row.operands, strict=True)
        ]
        self.leaves = differentiable(self.operands)
        self.leaf_dims = [each.dim for whole, each in zip(self.wholes, row.operands) if whole.is_floating_point()]
        self.gradients = [
            self.laid_out(torch.randn(out.shape), dim)
            for out, dim in zip(self.whole_results(), row.results, strict=True)
            if out.is_floating_point()
        ]

    def whole_results(self):
        """The results of the dense operator."""
        return tree_leaves(self.row.call(*self.wholes))

    def __call__(self):
        results = self.results()
        starts = differentiable(results)
        if not starts:
            return results
        return results + self.finished(torch.autograd.grad(starts, self.leaves, self.gradients))


class ByHand(Call):
    laid_out = staticmethod(part_of)

    def results(self):
        return tree_leaves(self.row.by_hand(*self.operands))

    def finished(self, gradients):
        return list(gradients)

    def parts(self):
        return [each.detach() for each in self()]


class Distributed(Call):
    """A package with the names of torch.distributed.tensor. Results and gradients that are Partial are reduced."""

    def __init__(self, row, side):
        self.laid_out, self.moved, self.to_local = side.distribute, side.redistribute, side.to_local()
        super().__init__(row)

    def results(self):
        found = tree_leaves(self.row.call(*self.operands))
        return [self.moved(each, dim) for each, dim in zip(found, self.row.results, strict=True)]

    def finished(self, gradients):
        return [self.moved(each, dim) for each, dim in zip(gradients, self.leaf_dims, strict=True)]

    def parts(self):
        return [self.to_local(each).detach() for each in self()]


def compared(row, sides):
    """The calls of the sides, whose results and gradients are equal. A package that refuses the row has none."""
    calls = {BY_HAND: ByHand(row)}
    expected = calls[BY_HAND].parts()
    for side in sides:
        try:
            call = Distributed(row, side)
            found = call.parts()
        except Exception as error:
            if side.name != TORCH:
                raise RuntimeError(f"{row.name}, {side.name}") from error
            continue
        for own, other in zip(expected, found, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4, msg=f"{row.name}: {side.name} differs")
        calls[side.name] = call
    return calls


def cells(name, times):
    base, base_cpu = times[BY_HAND]
    found = [name, f"{min(base):.2f}", f"{median(base):.2f}"]
    for side in (SHARDWISE, TORCH):
        if side not in times:
            found += ["-"] * 3
            continue
        ms, cpu = times[side]
        found += [*ratios(ms, base), f"{median(cpu) / median(base_cpu):.2f}"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_row_arguments(parser, seconds=1.5)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sides = available_sides()[1:]
    figures = {}
    for even, uneven in zip(rows(EVEN), rows(UNEVEN), strict=True):
        for row, extent in ((even, "even"), (uneven, "uneven")):
            name = f"{row.name}; {extent}"
            if is_chosen(name, options):
                figures[name] = in_turns_for(compared(row, sides), options.seconds)
    if dist.get_rank() == 0:
        report(figures, options.json)
    dist.barrier()
    dist.destroy_process_group()


def report(figures, file_name):
    header = ["row", "by hand ms", "median", "shardwise min", "median", "cpu", "torch min", "median", "cpu"]
    print(
        f"{machine_line()}, {dist.get_world_size()} Gloo ranks; forward and backward, ratios to the program by hand\n"
    )
    print("\n".join(aligned([header, *(cells(name, times) for name, times in figures.items())])))
    best = {name: min(times[SHARDWISE][0]) / min(times[BY_HAND][0]) for name, times in figures.items()}
    print(f"\n{above_target(best, TARGET)}")
    write_json(file_name, {"rows": figures})


if __name__ == "__main__":
    main()
