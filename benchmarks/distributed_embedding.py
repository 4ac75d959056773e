"""A training step of many embedding tables on four Gloo ranks (lookup, backward, SGD), with several implementations in one run.

    torchrun --nproc-per-node 4 benchmarks/distributed_embedding.py

26 tables of 64 float32 columns, a batch of 4096 over all ranks, one id per table and sample, uniform or by Zipf's law. A turn runs every
side once; a side's step ends when its slowest rank is done. The first vectors, and the tables after all steps, are compared between the
sides. TorchRec's side runs if TorchRec is installed (see embedding_torchrec.py). "calls" and "MB" are Shardwise's exchanges and received
bytes in one step on rank 0. "bound" is the bytes of the rows that rank 0 needs and does not hold, and of the gradients that other ranks
have for its rows.
"""

import argparse
import math

import embedding_torchrec as torchrec
import torch
import torch.distributed as dist
from comparison import aligned
from distributed_embedding_sides import sides
from sides import machine_line
from turns import min_and_median, ms_in_turns

import shardwise as sw

TARGETS = {"torch.distributed.tensor": 1 / 5, "TorchRec, own planner, fused SGD": 0.7}
EXPONENTS = {"uniform": 0.0, "Zipf(1.05)": 1.05}


class Problem:
    """Ids [batch, ids per sample] by table, equal on all ranks; each rank's samples are its own part."""

    def __init__(self, options, exponent):
        self.heights = [options.rows] * options.tables
        self.n_columns = options.columns
        self.ids_per_sample = options.ids_per_sample
        generator = torch.Generator().manual_seed(0)
        shape = (options.batch, options.ids_per_sample)
        self.ids = [drawn(n_rows, shape, exponent, generator) for n_rows in self.heights]
        self._width = len(self.heights) * self.n_columns

    def table(self, t):
        return torch.rand(self.heights[t], self.n_columns, generator=torch.Generator().manual_seed(t + 1))

    def own(self, batch):
        return batch.chunk(dist.get_world_size())[dist.get_rank()].contiguous()

    def own_gradient(self):
        generator = torch.Generator().manual_seed(7 + dist.get_rank())
        return torch.rand(len(self.own(self.ids[0])), self._width, generator=generator)


def drawn(n_rows, shape, exponent, generator):
    """Ids by Zipf's law: the k-th most frequent row has a probability proportional to k to the power of -`exponent`. Rows are in random
    order."""
    if exponent == 0:
        return torch.randint(n_rows, shape, generator=generator)
    weights = torch.arange(1, n_rows + 1, dtype=torch.float64).pow(-exponent)
    ranks = torch.searchsorted(
        weights.cumsum(0) / weights.sum(), torch.rand(shape, dtype=torch.float64, generator=generator)
    )
    return torch.randperm(n_rows, generator=generator)[ranks.clamp_max(n_rows - 1)]


def bound(problem, layer_plan=None):
    """The bytes of the unique rows of this rank's ids. Each is sent twice: as a row and as a gradient."""
    return sum(len(problem.own(ids).unique()) for ids in problem.ids) * problem.n_columns * 4


def compared(options, name, exponent):
    problem = Problem(options, exponent)
    calls = {side: make(problem) for side, make in sides().items() if options.sides is None or side in options.sides}
    first = {side: call()[0]() for side, call in calls.items()}
    reference = next(iter(first.values()))
    for side, vectors in first.items():
        torch.testing.assert_close(vectors, reference, msg=lambda text, side=side: f"{side}: {text}")
    ms = ms_in_turns(calls, options.repeats)
    rows = {side: call()[1]() for side, call in calls.items()}
    for side, values in rows.items():
        torch.testing.assert_close(
            values, next(iter(rows.values())), rtol=1e-4, atol=1e-3, msg=lambda text, side=side: f"{side}: {text}"
        )
    counts = {}
    if "shardwise" in calls:
        with sw.CommDebugMode() as mode:
            calls["shardwise"]()
        counts["shardwise"] = (
            mode.get_total_counts(),
            mode.get_total_bytes_received() if hasattr(mode, "get_total_bytes_received") else math.nan,
        )
    if dist.get_rank() == 0:
        base = ms["shardwise"]
        table = [(name, "min ms", "median ms", "/shardwise", "/shardwise", "calls")]
        for side in calls:
            table.append((side, *min_and_median(ms[side], base, 2), str(counts.get(side, ("-",))[0])))
        print("\n".join(aligned(table)))
        for side, target in TARGETS.items():
            if side in ms:
                ratios = [
                    f"{a / b:.2f}"
                    for a, b in zip(
                        *(
                            [statistic(x) for statistic in (min, lambda v: sorted(v)[len(v) // 2])]
                            for x in (base, ms[side])
                        ),
                        strict=True,
                    )
                ]
                print(f"  shardwise takes {' and '.join(ratios)} of {side} (target {target:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--ids-per-sample", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sides", nargs="+")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if dist.get_rank() == 0:
        print(machine_line())
        if not torchrec.is_installed():
            print(f"TorchRec: {torchrec.HOW_TO_INSTALL}")
    for name, exponent in EXPONENTS.items():
        compared(options, name, exponent)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
