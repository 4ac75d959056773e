"""The cost of a training step of a tensor-parallel transformer beside the program written by hand, on four Gloo ranks.

    export PYTHONPATH=build/python                                                     # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/tax.py                                      # eager, some minutes
    torchrun --nproc-per-node 4 benchmarks/tax.py --widths 256 --lengths 128           # one size
    torchrun --nproc-per-node 4 benchmarks/tax.py --compiled                           # one size, some minutes

A step is forward, backward and AdamW (fused) of 4 layers. "by hand" has plain tensors and Megatron-LM's two autograd functions. Shardwise
runs by its parallel styles (activations within the halves of a layer are plain tensors, or DTensors), and by distribute_module alone;
torch.distributed.tensor runs by its styles, with plain activations. A compiled graph takes no plain input next to DTensors, so that
distribute_module alone is left out there. Instead, "styles, waits at once" has graphs in which each move ends where it starts, so that nothing
overlaps with it. The model's input has a gradient there, as if an embedding came before: so all layers of a side are one graph. All sides have
the same weights and the same losses.

Sides take turns, and a step lasts until the slowest rank is done. Ratios divide by the side by hand. "cpu" is the CPU time of a rank's
process for a layer, in microseconds, and "adds" what a side adds to it.
"""

import argparse
import contextlib
import functools
from unittest import mock

import tax_models
import torch
import torch._inductor.config
import torch.distributed as dist
import torch.distributed.tensor
from comparison import aligned, write_json
from sides import SHARDWISE, TORCH, machine_line
from turns import in_turns, min_and_median

BY_HAND, STYLES, DTENSORS, MODULE = "by hand", "styles, plain", "styles, DTensors", "distribute_module"
AT_ONCE = "styles, waits at once"
N_LAYERS = 4
TARGETS = {False: "1.02, and 0.98 from a width of 512 on", True: "1.00"}
WIDTHS = {False: [64, 256, 512, 1024], True: [256]}  # a compiled size takes minutes
LENGTHS = {False: [32, 256, 1024], True: [128]}

MAKERS = {
    BY_HAND: tax_models.by_hand,
    STYLES: functools.partial(tax_models.by_styles, SHARDWISE, plain=True),
    DTENSORS: functools.partial(tax_models.by_styles, SHARDWISE, plain=False),
    MODULE: functools.partial(tax_models.distributed, SHARDWISE),
    AT_ONCE: functools.partial(tax_models.by_styles, SHARDWISE, plain=True),
    TORCH: functools.partial(tax_models.by_styles, TORCH, plain=True),
}
NOT_OF = {False: AT_ONCE, True: MODULE}  # by --compiled


class Step:
    """A model and its optimizer; a call is one training step and returns the loss."""

    def __init__(self, make, width, x, is_compiled):
        self.model = make(width, N_LAYERS)
        kinds = {}  # torch's DTensors and plain tensors need groups of their own
        for each in self.model.parameters():
            kinds.setdefault(isinstance(each, torch.distributed.tensor.DTensor), []).append(each)
        self.optimizer = torch.optim.AdamW([{"params": each} for each in kinds.values()], lr=1e-3, fused=True)
        self.x = x
        if is_compiled:
            for layer in self.model:
                layer.compile(fullgraph=True)

    def __call__(self):
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def first_losses(name, step):
    """The losses of a side's first steps, in which it compiles."""
    in_order = mock.patch("shardwise.interop.compiled_programs.put_in_order", lambda graph: None)
    with in_order if name == AT_ONCE else contextlib.nullcontext():
        return [value_of(step()) for _ in range(4)]


def value_of(loss):
    return (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item()


def measured(options, width, length):
    """By side, the times of its steps and their CPU times."""
    torch._dynamo.reset()
    x = torch.randn(options.batch, length, width, generator=torch.Generator().manual_seed(1))
    x.requires_grad_(options.compiled)
    steps = {name: Step(MAKERS[name], width, x, options.compiled) for name in options.sides}
    losses = {name: first_losses(name, step) for name, step in steps.items()}
    for name, found in losses.items():
        expected = losses[options.sides[0]]
        assert all(abs(a - b) < 1e-3 * abs(b) for a, b in zip(found, expected)), f"{name}: {found}, expected {expected}"
    in_turns(steps, 3)
    return in_turns(steps, options.repeats)


def lines(size, times):
    base, base_cpu = next(iter(times.values()))
    for name, (ms, cpu) in times.items():
        of_layer, added = (1e3 * value / N_LAYERS for value in (min(cpu), min(cpu) - min(base_cpu)))
        yield [size, name, *min_and_median(ms, base, 2), f"{of_layer:.0f}", f"{added:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compiled", action="store_true", help="compile each layer by torch.compile")
    parser.add_argument("--sides", nargs="+", choices=list(MAKERS), help="the first is the base")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    options.widths, options.lengths = (
        options.widths or WIDTHS[options.compiled],
        options.lengths or LENGTHS[options.compiled],
    )
    options.sides = options.sides or [name for name in MAKERS if name != NOT_OF[options.compiled]]
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True  # sides with equal graphs are compiled in different orders
    dist.init_process_group("gloo")
    figures = {
        f"{width} x {length}": measured(options, width, length)
        for width in options.widths
        for length in options.lengths
    }
    if dist.get_rank() == 0:
        print(f"{machine_line()}, {dist.get_world_size()} Gloo ranks, {'compiled' if options.compiled else 'eager'}")
        header = ["width x length", "side", "min ms", "median", "ratio", "of med.", "cpu us/layer", "adds"]
        print("\n".join(aligned([header, *(line for size, times in figures.items() for line in lines(size, times))])))
        print(f"target: {TARGETS[options.compiled]}")
        write_json(options.json, {"compiled": options.compiled, "sizes": figures})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
