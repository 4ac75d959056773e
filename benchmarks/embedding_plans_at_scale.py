"""A simulated step of 10,000 tables on 4,096 ranks, for each strategy of the planner. It needs no processes.

    python benchmarks/embedding_plans_at_scale.py [--tables 10000] [--nodes 512] [--per-node 8]

Tables have ten to 10^9 rows and 16 to 128 columns; a quarter of them are pooled over up to 20 ids; ids follow Zipf's law or are uniform.
Each rank is like an accelerator (2 TB/s, 1 ns to reach a row, 5 ns per segment). A node has 8 ranks, with 100 GB/s and 2 us between them;
between nodes there are 12.5 GB/s and 5 us. Each rank has 256 samples, and the optimizer is row-wise Adagrad. docs/distributed_embeddings.md
has the result.
"""

import argparse
import random
import time

import shardwise as sw

PLANS = {
    "basic, whole tables": {"strategy": "basic"},
    "memory_balanced, whole tables": {"strategy": "memory_balanced"},
    "memory_optimized, whole tables": {"strategy": "memory_optimized"},
    "memory_optimized, thresholds": {
        "strategy": "memory_optimized",
        "data_parallel_threshold": 10_000,
        "row_slice_threshold": 20_000_000_000,
        "column_slice_threshold": 50_000_000,
    },
    "cost_balanced": {"strategy": "cost_balanced"},
    "cost_balanced, 40 GB per rank": {"strategy": "cost_balanced", "memory_per_rank": 40 * 10**9},
}


def tables(n, skewed, seed=0):
    draw = random.Random(seed)
    return [
        sw.TableConfig(
            f"t{i}",
            int(10 ** draw.uniform(1, 9)),
            2 ** draw.randint(4, 7),
            dtype="float16",
            ids_per_sample=draw.uniform(1, 20) if draw.random() < 0.25 else 1,
            skew=draw.uniform(0, 1.2) if skewed else 0,
        )
        for i in range(n)
    ]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--tables", type=int, default=10_000)
    arguments.add_argument("--nodes", type=int, default=512)
    arguments.add_argument("--per-node", type=int, default=8)
    options = arguments.parse_args()
    n_ranks = options.nodes * options.per_node
    print(
        "| ids | plan | step | over the bound | heaviest rank | replicated / table- / row-parallel | planned in (CPU time) |"
    )
    print("|---|---|---|---|---|---|---|")
    for skewed in (False, True):
        configs = tables(options.tables, skewed)
        for name, chosen in PLANS.items():
            print(
                f"| {'Zipf' if skewed else 'uniform'} | {name} | {row(configs, n_ranks, options, chosen)} |", flush=True
            )


def row(configs, n_ranks, options, chosen):
    start = time.process_time()
    try:
        plan = sw.plan_embeddings(
            configs,
            n_ranks,
            batch_per_rank=256,
            state_bytes_per_row=4,
            mesh_shape=(options.nodes, options.per_node),
            links=[(5, 12.5), (2, 100)],
            machine=(2000, 1, 5),
            **chosen,
        )
    except ValueError as error:
        return f"{str(error).splitlines()[0].split('. ')[0]} | | | |"
    seconds = time.process_time() - start
    treatments = [table.treatment for table in plan.table_plans]
    counts = [treatments.count(kind) for kind in ("replicated", "table-parallel", "row-parallel")]
    heaviest = plan.rank_load(plan.heaviest_rank).n_bytes / 1e9
    return (
        f"{plan.seconds * 1e3:,.1f} ms | {plan.seconds / plan.bound_seconds:.3f} | {heaviest:.1f} GB | "
        + " / ".join(f"{count:,}" for count in counts)
        + f" | {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
