"""A training step with a table in files, with its hot rows in memory, compared with the same table in memory; four Gloo ranks.

    torchrun --nproc-per-node 4 benchmarks/tables_beyond_memory.py --folder /a/local/disk

One table, sharded by rows over the ranks, with Adagrad in the backward, and new ids by Zipf's law in every step. A turn runs one step of
every side. "hit rate", "evictions" and bytes to and from the file are rank 0's, per step, after the warm-up steps. Vectors are compared
between the sides in every step. The system caches pages of the file in free memory, so only tables larger than that show the cost of a
disk.
"""

import argparse
import math

import torch
import torch.distributed as dist
from comparison import aligned
from sides import machine_line
from turns import min_and_median, ms_in_turns

import shardwise as sw

SHARES = (0.01, 0.1, 0.5)


class Ids:
    """Batches of ids by Zipf's law; the frequent ids belong to random rows. They are equal on all ranks."""

    def __init__(self, options):
        weights = torch.arange(1, options.rows + 1, dtype=torch.float64).pow(-options.exponent)
        self._sums = weights.cumsum(0) / weights.sum()
        self._rows = torch.randperm(options.rows, generator=torch.Generator().manual_seed(0))
        self._batch = options.batch

    def own(self, step):
        generator = torch.Generator().manual_seed(1 + step)
        drawn = torch.searchsorted(self._sums, torch.rand(self._batch, dtype=torch.float64, generator=generator))
        ids = self._rows[drawn.clamp_max(len(self._rows) - 1)]
        return ids.chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class Side:
    """A layer with one table, and its steps."""

    def __init__(self, options, ids, cache_rows):
        config = sw.TableConfig("table", options.rows, options.columns)
        storage = {"table": sw.FileStorage(options.folder, cache_rows=cache_rows)} if cache_rows else {}
        torch.manual_seed(0)
        self.layer = sw.DistributedEmbedding([config], row_slice_threshold=1, storage=storage)
        self._optimizer = sw.optim.FusedAdagrad(list(self.layer.parameters()), lr=0.1)
        self._batches = [ids.own(step) for step in range(options.warm + options.repeats)]
        self._next = 0
        self.vectors = None

    def __call__(self):
        vectors = self.layer([self._batches[self._next]])[0]
        vectors.square().sum().backward()
        self.vectors = vectors.detach()
        self._next += 1

    def counts(self):
        return self.layer.cache_counts().get("table")


def row_of(name, ms, base, before, after, repeats):
    cells = [name, *min_and_median(ms, base, 2)]
    if after is None:
        return (*cells, *["-"] * 5)
    hits, misses = after.hits - before.hits, after.misses - before.misses
    per_step = (
        after.evictions - before.evictions,
        after.bytes_read - before.bytes_read,
        after.bytes_written - before.bytes_written,
    )
    return (
        *cells,
        f"{after.slots:,}",
        f"{hits / max(hits + misses, 1):.1%}",
        *(f"{each / repeats:,.0f}" for each in per_step),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--exponent", type=float, default=1.05)
    parser.add_argument("--warm", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ids = Ids(options)
    rows_here = math.ceil(options.rows / dist.get_world_size())
    sides = {"in memory": Side(options, ids, 0)}
    for share in SHARES:
        sides[f"files, {share:.0%} in memory"] = Side(options, ids, math.ceil(share * rows_here))
    reference = sides["in memory"]
    for _ in range(options.warm):
        for name, side in sides.items():
            side()
            torch.testing.assert_close(
                side.vectors, reference.vectors, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
            )
    before = {name: side.counts() for name, side in sides.items()}
    ms = ms_in_turns(sides, options.repeats)
    for side in sides.values():
        torch.testing.assert_close(side.vectors, reference.vectors, rtol=0, atol=0)
    if dist.get_rank() == 0:
        print(machine_line())
        print(
            f"{options.rows:,} x {options.columns} float32, batch {options.batch}, Zipf({options.exponent}), {options.warm} steps before"
        )
        header = (
            "",
            "min ms",
            "median ms",
            "/in memory",
            "/in memory",
            "rows",
            "hit rate",
            "evictions",
            "bytes read",
            "bytes written",
        )
        base = ms["in memory"]
        print(
            "\n".join(
                aligned(
                    [
                        header,
                        *(row_of(n, ms[n], base, before[n], s.counts(), options.repeats) for n, s in sides.items()),
                    ]
                )
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
