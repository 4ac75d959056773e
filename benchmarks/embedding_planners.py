"""Plans of embedding tables by strategy, and by TorchRec's planner if it is installed, for the same tables.

    python benchmarks/embedding_planners.py [--instances 50] [--seed 0]

The figure is the step time of the most loaded rank by Shardwise's load model (wrappers/embedding_plan/load_model.h), divided by the bound.
TorchRec's planner minimises TorchRec's own model of CPUs. So both models evaluate each plan: TorchRec's plans are converted to slices, and
Shardwise's plans to TorchRec's sharding types, with the slices as shards. benchmarks/embedding_torchrec.py says how to install TorchRec.
"""

import argparse
import logging
import random
import warnings
from statistics import fmean, geometric_mean

import embedding_torchrec
from embedding_planners_torchrec import TorchRecPlanner

import shardwise as sw

STRATEGIES = ("basic", "memory_balanced", "memory_optimized", "cost_balanced")
TORCHREC = "TorchRec's planner"
# Rows of the categorical features of Criteo's display advertising challenge, as DLRM's reference implementation counts them.
CRITEO_ROWS = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]  # fmt: skip


def criteo(n_ranks):
    return [sw.TableConfig(f"t{i}", rows, 64, skew=1.05) for i, rows in enumerate(CRITEO_ROWS)], n_ranks


def instance(seed):
    """Ten to 10^8 rows of 16 to 256 columns, pooled or not, uniform to skewed, on 2 to 64 ranks."""
    draw = random.Random(seed)
    n_ranks = 2 ** draw.randint(1, 6)
    tables = [
        sw.TableConfig(
            f"t{i}",
            int(10 ** draw.uniform(1, 8)),
            2 ** draw.randint(4, 8),
            ids_per_sample=draw.choice([1, 1, draw.uniform(2, 30)]),
            skew=draw.choice([0, draw.uniform(0.2, 1.3)]),
        )
        for i in range(n_ranks + draw.randint(0, 3 * n_ranks + 20))
    ]
    return tables, n_ranks


def judged(tables, n_ranks, batch):
    """The seconds of the most loaded rank by planner; None if the planner's rules leave ranks without a slice. With TorchRec, also the
    estimates of TorchRec's model for the plans of cost_balanced and of TorchRec."""
    found = {}
    for strategy in STRATEGIES:
        try:
            plan = sw.plan_embeddings(tables, n_ranks, strategy=strategy, batch_per_rank=batch)
        except ValueError:
            found[strategy] = None
            continue
        found[strategy] = plan.seconds
        found["bound"] = plan.bound_seconds
    if embedding_torchrec.is_installed():
        torchrec = TorchRecPlanner(tables, n_ranks, batch)
        theirs = torchrec.plan()
        found[TORCHREC] = theirs.seconds
        found["by TorchRec's model"] = (torchrec.estimate(plan), torchrec.estimate(theirs))
    return found


def print_row(name, results):
    cells = []
    for planner in (*STRATEGIES, TORCHREC):
        ratios = [each[planner] / each["bound"] for each in results if each.get(planner) is not None]
        cells.append(f"{fmean(ratios):.3f} / {max(ratios):.3f}" if ratios else "-")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def print_verdict(model, pairs):
    """`pairs`: for each instance, the figures of cost_balanced and of TorchRec."""
    ratios = [ours / theirs for ours, theirs in pairs]
    better, worse = sum(r < 1 - 1e-6 for r in ratios), sum(r > 1 + 1e-6 for r in ratios)
    print(
        f"By {model}: cost_balanced is better in {better}, worse in {worse}, equal in {len(ratios) - better - worse} of {len(ratios)}; "
        f"its time over that of TorchRec's plan: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}, most {max(ratios):.3f}"
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--instances", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--batch", type=int, default=4096)
    options = arguments.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if not embedding_torchrec.is_installed():
        print(f"TorchRec: {embedding_torchrec.HOW_TO_INSTALL}")
    print("seconds of the most loaded rank over the bound, mean / most\n")
    print("| tables | " + " | ".join((*STRATEGIES, TORCHREC)) + " |")
    print("|---|" + "---|" * (len(STRATEGIES) + 1))
    for n_ranks in (4, 16):
        print_row(f"Criteo's 26 on {n_ranks} ranks", [judged(*criteo(n_ranks), options.batch)])
    results = [judged(*instance(options.seed + i), options.batch) for i in range(options.instances)]
    print_row(f"{options.instances} random instances", results)
    if embedding_torchrec.is_installed() and results:
        print()
        print_verdict("Shardwise's model", [(each["cost_balanced"], each[TORCHREC]) for each in results])
        print_verdict("TorchRec's model", [each["by TorchRec's model"] for each in results])


if __name__ == "__main__":
    main()
