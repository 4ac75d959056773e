"""Lookups of replicated ids in a table sharded by rows, the form of torch.distributed.tensor and Megatron-LM: by hand and by Shardwise.

    PYTHONPATH=build/python torchrun --nproc-per-node 4 benchmarks/vocabulary_parallel.py
    PYTHONPATH=build/python torchrun --nproc-per-node 4 benchmarks/vocabulary_parallel.py --sizes 32768x64x256 --ids zipf

A size is rows x columns x ids. All ranks have all ids, and get all rows ("all") or those of their part of the ids ("part"), forward alone or with the
dense gradient of this rank's rows.

    Megatron     VocabParallelEmbedding: mask, lookup, zeros, all-reduce or reduce-scatter; autograd
    by hand      the same without autograd, and a gradient of this rank's ids alone
    shardwise    F.embedding(ids, table).redistribute(placements)
    ..., terms   the same under lookup_exchange("reduce_scatter"): ranks reduce terms instead of sending each row once

Over Gloo, a reduce-scatter is an exchange and a sum, which is faster than Gloo's own. The sides take turns (turns.py). "ratio" is to the faster one
of the first two, by minimum, median and CPU time.
"""

import argparse
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from comparison import aligned
from embedding_by_hand import gathered, masked_gradient, masked_lookup, reduce_scattered
from embedding_problem import draw_ids
from sides import machine_line
from turns import in_turns, median

import shardwise as sw

SIZES = ("32768x64x256", "32768x64x2048", "131072x256x2048", "131072x64x8192", "1048576x64x2048")
MEGATRON, BY_HAND = "Megatron", "by hand"


class _Sum(torch.autograd.Function):
    """All ranks' sum; the gradient is the same on all ranks."""

    @staticmethod
    def forward(ctx, terms):
        dist.all_reduce(terms)
        ctx.mark_dirty(terms)
        return terms

    @staticmethod
    def backward(ctx, grad):
        return grad


class _PartOfSum(torch.autograd.Function):
    """This rank's part of all ranks' sum."""

    @staticmethod
    def forward(ctx, terms):
        return reduce_scattered(terms)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad)


class Size:
    """The calls for one size: `is_part` says which rows a rank gets, `with_grad` whether there is a backward."""

    def __init__(self, text, kind):
        n_rows, n_columns, n_ids = map(int, text.split("x"))
        n_own = n_rows // dist.get_world_size()
        self.begin, self.ids = dist.get_rank() * n_own, draw_ids(kind, n_rows, (n_ids,))
        self.table = torch.randn(n_own, n_columns)
        mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
        place = partial(sw.DTensor.from_local, device_mesh=mesh, run_check=False)
        self.parameter, self.placed_ids = (
            self.table.clone().requires_grad_(),
            place(self.ids, placements=[sw.Replicate()]),
        )
        self.placed_table = place(self.table.clone(), placements=[sw.Shard(0)]).requires_grad_()
        shape, seeded = (n_ids, n_columns), torch.Generator().manual_seed(0)
        grad = torch.randint(-4, 5, shape, generator=seeded).float()  # sums are exact in any order
        self.grads = grad, grad.chunk(dist.get_world_size())[dist.get_rank()].clone()
        self.placements = [sw.Replicate()], [sw.Shard(0)]
        self.placed_grads = [
            place(own, placements=where) for own, where in zip(self.grads, self.placements, strict=True)
        ]

    def megatron(self, is_part, with_grad):
        with torch.set_grad_enabled(with_grad):
            local = self.ids - self.begin
            is_elsewhere = (local < 0) | (local >= len(self.table))
            rows = F.embedding(local.masked_fill_(is_elsewhere, 0), self.parameter)
            result = (_PartOfSum if is_part else _Sum).apply(rows.masked_fill(is_elsewhere.unsqueeze(1), 0))
        return self._finish(result, self.grads[is_part], self.parameter, with_grad)

    def by_hand(self, is_part, with_grad):
        result = masked_lookup(self.table, self.ids, self.begin)
        if is_part:
            result = reduce_scattered(result)
        else:
            dist.all_reduce(result)
        if not with_grad:
            return result, None
        grad = gathered(self.grads[1]) if is_part else self.grads[0]
        return result, masked_gradient(grad, self.ids, self.begin, len(self.table))

    def shardwise(self, exchange, is_part, with_grad):
        with sw.lookup_exchange(exchange), torch.set_grad_enabled(with_grad):
            result = F.embedding(self.placed_ids, self.placed_table).redistribute(placements=self.placements[is_part])
        return self._finish(result, self.placed_grads[is_part], self.placed_table, with_grad)

    def _finish(self, result, grad, table, with_grad):
        if not with_grad:
            return result, None
        result.backward(grad)
        table_grad, table.grad = table.grad, None
        return result.detach(), table_grad

    def calls(self, is_part, with_grad):
        sides = {
            MEGATRON: self.megatron,
            BY_HAND: self.by_hand,
            "shardwise": partial(self.shardwise, "auto"),
            "shardwise, terms": partial(self.shardwise, "reduce_scatter"),
        }
        return {name: partial(side, is_part, with_grad) for name, side in sides.items()}


def check(calls):
    """All sides give the same rows and gradients."""
    expected = calls[BY_HAND]()
    for name, call in calls.items():
        for ours, theirs in zip(call(), expected, strict=True):
            own = ours.to_local() if isinstance(ours, sw.DTensor) else ours
            torch.testing.assert_close(own, theirs, msg=lambda text, name=name: f"{name}: {text}")


def main():
    parser = argparse.ArgumentParser(
        description="Lookups of replicated ids in a table sharded by rows, by hand and by Shardwise."
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="ROWSxCOLUMNSxIDS")
    parser.add_argument("--ids", nargs="+", choices=("uniform", "zipf"), default=("uniform", "zipf"))
    parser.add_argument("--repeats", type=int, default=40, help="turns of each side (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lines = [("size, ids", "result", "side", "min ms", "median", "ratio", "of med.", "of cpu")]
    for text in args.sizes:
        for kind in args.ids:
            size = Size(text, kind)
            for is_part in (False, True):
                for with_grad in (False, True):
                    calls = size.calls(is_part, with_grad)
                    check(calls)
                    times = in_turns(calls, args.repeats)
                    figures = {name: (min(ms), median(ms), min(cpu)) for name, (ms, cpu) in times.items()}
                    best = [min(pair) for pair in zip(figures[MEGATRON], figures[BY_HAND], strict=True)]
                    what = f"{'part' if is_part else 'all'}{', backward' if with_grad else ''}"
                    for name, own in figures.items():
                        ratios = (f"{a / b:.2f}" for a, b in zip(own, best, strict=True))
                        lines.append((f"{text} {kind}", what, name, f"{own[0]:.2f}", f"{own[1]:.2f}", *ratios))
    if dist.get_rank() == 0:
        print(f"{machine_line()}, {dist.get_world_size()} Gloo ranks", *aligned(lines), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
