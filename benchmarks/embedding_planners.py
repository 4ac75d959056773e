"""Plans of embedding tables by strategy, and by TorchRec's planner where it is installed, on the same tables.

    python benchmarks/embedding_planners.py [--instances 50] [--seed 0]

A step of the most loaded rank by Shardwise's model (wrappers/embedding_plan/load_model.h), over the bound. TorchRec's planner minimises a
model of its own, of GPUs or CPUs that it knows; its plan is read as slices and judged by ours, so the comparison favours ours
where the two models differ. benchmarks/embedding_torchrec.py says how TorchRec is installed.
"""

import argparse
import json
import logging
import math
import random
import warnings
from statistics import fmean

import embedding_torchrec

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


def torchrec_plan(tables, n_ranks, batch):
    """What TorchRec's planner makes of the tables, as a plan of ours."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology

    configs = [
        EmbeddingBagConfig(name=t.name, embedding_dim=t.n_columns, num_embeddings=t.n_rows, feature_names=[t.name])
        for t in tables
    ]
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=n_ranks, local_world_size=n_ranks, compute_device="cpu", ddr_cap=2**50, hbm_cap=2**50
        ),
        batch_size=batch,
        constraints={t.name: ParameterConstraints(pooling_factors=[t.ids_per_sample]) for t in tables},
    )
    found = planner.plan(
        EmbeddingBagCollection(tables=configs, device=torch.device("meta")), [EmbeddingBagCollectionSharder()]
    )
    plan = json.loads(sw.plan_embeddings(tables, n_ranks, strategy="cost_balanced", batch_per_rank=batch).to_json())
    for table, made in zip(tables, plan["plans"], strict=True):
        made.clear()
        made.update(translated(found.plan[""][table.name], table))
    return sw.EmbeddingPlan.from_json(json.dumps(plan))


def translated(sharding, table):
    """One table of TorchRec's plan, as JSON of ours."""
    reason = sharding.sharding_type
    if reason == "data_parallel":
        return {"treatment": "replicated", "reason": reason}
    boxes = [
        (shard.placement.rank(), shard.shard_offsets, shard.shard_sizes) for shard in sharding.sharding_spec.shards
    ]
    if all(
        sizes[0] == table.n_rows for _, _, sizes in boxes
    ):  # several on a rank are one: which columns is all the same
        widths, slices, begin = {}, [], 0
        for rank, _, sizes in boxes:
            widths[rank] = widths.get(rank, 0) + sizes[1]
        for rank, width in widths.items():
            slices.append({"rank": rank, "columns": [begin, begin + width]})
            begin += width
        return {"treatment": "table-parallel", "reason": reason, "slices": slices}
    slices = [{"rank": rank, "rows": [o[0], o[0] + s[0]], "columns": [o[1], o[1] + s[1]]} for rank, o, s in boxes]
    return {"treatment": "row-parallel", "reason": reason, "slices": slices}


def seconds_of(tables, n_ranks, batch):
    """By planner, seconds of the most loaded rank; None where its rules leave ranks without a slice."""
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
        found[TORCHREC] = torchrec_plan(tables, n_ranks, batch).seconds
    return found


def print_row(name, results):
    cells = []
    for planner in (*STRATEGIES, TORCHREC):
        ratios = [each[planner] / each["bound"] for each in results if each.get(planner) is not None]
        cells.append(f"{fmean(ratios):.3f} / {max(ratios):.3f}" if ratios else "-")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


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
        print_row(f"Criteo's 26 on {n_ranks} ranks", [seconds_of(*criteo(n_ranks), options.batch)])
    results = [seconds_of(*instance(options.seed + i), options.batch) for i in range(options.instances)]
    print_row(f"{options.instances} random instances", results)
    ahead = [r for r in results if r.get(TORCHREC) is not None and r["cost_balanced"] > r[TORCHREC] * (1 + 1e-9)]
    if math.isfinite(results[0].get(TORCHREC, math.inf)):
        print(f"\nTorchRec's plan is better than cost_balanced's in {len(ahead)} of {len(results)} instances")


if __name__ == "__main__":
    main()
