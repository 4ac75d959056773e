"""Plans that suggest() finds, beside plans that people and other planners make, all by the same dry runs.

    python benchmarks/suggest.py [--layers 32] [--sequences 1]
    PYTHONPATH=build/torchrec python benchmarks/suggest.py --dlrm 8 16
    PYTHONPATH=autoparallel:libraries python benchmarks/suggest.py --autoparallel 32

Llama has the shapes of Llama-3-8B in transformers' model, and its loss. transformers' plan is its tp_plan. Megatron-LM's differs from it outside of the
blocks, where it divides the rows of the embedding.

DLRM has Criteo's 26 tables and is trained by row-wise Adagrad, fused into the backward, and SGD. TorchRec's planner places the tables for GPUs with 80 GB,
eight on a host. The figures are those of the slowest rank, and the imbalance is its step over the mean of all ranks. benchmarks/embedding_torchrec.py says
how to install TorchRec.

AutoParallel plans MLP blocks and Llama-like blocks, see benchmarks/suggest_autoparallel.py. suggest() plans for the same hardware, and its dry runs
judge both.
"""

import argparse
import contextlib
import io
import itertools
import json
import logging
import math
import subprocess
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace
from statistics import fmean

import embedding_torchrec
import suggest_autoparallel as autoparallel
import torch
from embedding_planners import CRITEO_ROWS
from embedding_planners_torchrec import TorchRecPlanner
from suggest_models import MODELS, Tables
from torch import nn

import shardwise as sw
from shardwise._suggest.layers import COLUMN, ROW, WHOLE
from shardwise._suggest.plans import Plan

PER_HOST, MEMORY = 8, 80 * 10**9
# suggest()'s rates in TorchRec's units: bytes per ms.
TOPOLOGY = {
    "local_world_size": PER_HOST,
    "compute_device": "cuda",
    "hbm_cap": MEMORY,
    "hbm_mem_bw": 2e9,
    "intra_host_bw": 3e8,
    "inter_host_bw": 2.5e7,
}
LAYOUTS = {"colwise": COLUMN, "colwise_gather_output": COLUMN, "rowwise": ROW}


def llama(n_layers):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        num_hidden_layers=n_layers,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config).bfloat16()


def perceptron(*widths):
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*(each for pair in layers for each in pair))


class DLRM(nn.Module):
    def __init__(self, n_rows, width=128):
        super().__init__()
        self.lookups, self.bottom = Tables(n_rows, width), perceptron(13, 512, 256, width)
        self.pairs = torch.tril_indices(len(n_rows) + 1, len(n_rows) + 1, -1, device="meta")
        self.top = nn.Sequential(perceptron(width + self.pairs.shape[1], 1024, 1024, 512, 256), nn.Linear(256, 1))

    def forward(self, dense, ids):
        x = self.bottom(dense)
        vectors = torch.stack([x, *self.lookups(ids)], 1)
        products = vectors @ vectors.mT
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


def row_wise_adagrad(parameters):
    """SGD for dense layers; tables are updated in the backward. Without ranks, tables are not updated."""
    tables = [each for each in parameters if each.shape[0] in CRITEO_ROWS and each.shape[-1] == 128]
    sharded = [each for each in tables if isinstance(each, sw.DTensor)]
    known = set(tables)
    optimizer = torch.optim.SGD([each for each in parameters if each not in known], lr=0.1)
    optimizer.of_tables = sharded and sw.optim.FusedAdagrad(sharded, lr=0.1, row_wise=True)
    return optimizer


def published(model, kinds, **others):
    """transformers' plan on one dim, with `others` by layer."""
    given = {**model.config.base_model_tp_plan, **(type(model)._tp_plan or {})}
    by_layer = {pattern.split(".")[-1]: LAYOUTS.get(style, WHOLE) for pattern, style in given.items()} | others
    return Plan((("tp", PER_HOST),), tuple(by_layer.get(kind.names[0].split(".")[-1], WHOLE) for kind in kinds))


def costs_of(meter, plan):
    """A step by rank."""
    ranks, costs = set(range(meter.n_ranks)), []
    while ranks:
        rank = min(ranks)
        cost = meter.run(meter.subject.model, plan, rank, n_steps=2, others=sorted(ranks))
        if cost.failure:
            raise RuntimeError(f"{plan}: {cost.failure}")
        costs += [cost] * len({rank, *cost.alike})
        ranks -= {rank, *cost.alike}
    return costs


def row(name, plan, meter, least):
    costs = costs_of(meter, plan)
    slowest, n_bytes = max(each.seconds for each in costs), max(each.n_bytes for each in costs)
    imbalance = slowest / fmean(each.seconds for each in costs)
    figures = f"{slowest * 1e3:,.2f} ms | {slowest / least:.2f} | {n_bytes / 2**30:.1f} GiB | {imbalance:.2f}"
    print(f"| {name} | {plan} | {figures} |", flush=True)
    return costs


def compare(model, batch, n_ranks, others, **options):
    begin = time.process_time()
    found = sw.suggest(model, batch, ranks=n_ranks, memory=MEMORY, **options)
    spent, meter = time.process_time() - begin, found.search.meter
    print(f"\nfound in {spent:.0f} s of CPU time, of {len(found.search.weighed())} plans\n")
    print("| Plan | Mesh | Step | Over the bound | Memory | Imbalance |\n|---|---|---|---|---|---|")
    row("suggest()", found.plan, meter, found.bound_seconds)
    for name, plan in others(found).items():
        row(name, plan, meter, found.bound_seconds)


def compare_llama(n_layers, n_sequences):
    model, ids = llama(n_layers), torch.zeros(n_sequences, 4096, dtype=torch.long)

    def others(found):
        kinds = found.search.meter.subject.kinds
        return {
            "transformers' `tp_plan`": published(model, kinds),
            "Megatron-LM's": published(model, kinds, embed_tokens=ROW),
        }

    compare(model, {"input_ids": ids, "labels": ids}, PER_HOST, others)


def compare_dlrm(n_ranks, n_samples):
    with torch.device("meta"):
        model = DLRM(CRITEO_ROWS)
        batch = torch.zeros(n_samples, 13), [torch.zeros(n_samples, 1, dtype=torch.long) for _ in CRITEO_ROWS]

    def others(found):
        tables = [sw.TableConfig(f"table_{i}", n, 128) for i, n in enumerate(CRITEO_ROWS)]
        planner = TorchRecPlanner(tables, n_ranks, n_samples // n_ranks, **TOPOLOGY)
        with contextlib.redirect_stdout(io.StringIO()):
            plan = planner.plan()
        kinds = Counter(each.reason for each in plan.table_plans)
        print(f"| (TorchRec: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}) |")
        return {
            "TorchRec's planner": replace(found.plan, tables=f"plan=sw.EmbeddingPlan.from_json({plan.to_json()!r})"),
            "tables by rows": replace(found.plan, tables='strategy="memory_balanced", row_slice_threshold=1'),
        }

    compare(model, batch, n_ranks, others, optimizer=row_wise_adagrad)


def plan_of_autoparallel(arguments, shape, kinds):
    """AutoParallel's layouts of weights as a plan, the CPU time that it took, and the number of kinds of layers that the plan lays out differently.
    Raises RuntimeError."""
    command = [sys.executable, autoparallel.__file__, *map(str, arguments), ",".join(map(str, shape))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().split("\n")[-1].removeprefix("[rank0]: "))
    found = json.loads(done.stdout.strip().split("\n")[-1])
    used = {path.removesuffix(".weight"): each for path, each in found["weights"].items() if "norm" not in path}
    # A mesh dim whose weights mostly see a part of the batch divides the batch, any other one divides layers.
    divides = [2 * sum(each[m] == "data" for each in used.values()) > len(used) for m in range(len(shape))]
    n_parts = math.prod(n for n, is_data in zip(shape, divides, strict=True) if is_data)
    layouts, n_others = [], 0
    for kind in kinds:
        each = used.get(kind.names[0].replace("*", "0")) or ["data" if is_data else "whole" for is_data in divides]
        over_layers = {use for use, is_data in zip(each, divides, strict=True) if not is_data}
        n_others += len(over_layers) > 1 or any(
            use != "data" for use, is_data in zip(each, divides, strict=True) if is_data
        )
        columns = 1 if isinstance(kind.layer, nn.Embedding) else 0
        by_use = {f"shard {columns}": COLUMN, f"shard {1 - columns}": ROW}
        layouts.append(by_use.get(min(over_layers, default=""), WHOLE))
    mesh = {"shard": n_parts, "tp": math.prod(shape) // n_parts}
    plan = Plan(tuple((dim, n) for dim, n in mesh.items() if n > 1), tuple(layouts))
    return plan, found["seconds"], n_others


def compare_autoparallel(n_blocks):
    print(
        "| Model | Sequences | Plan | Mesh | Step | Over the bound | Sent | Memory | Found in | Layouts over tp |\n"
        f"|{'---|' * 10}"
    )
    for name, make in MODELS.items():
        model, make_batch = make(n_blocks)
        for n_sequences, shapes in ((1, [(8,), (1, 8)]), (2, [(2, 4)]), (8, [(8,)])):
            begin, batch = time.process_time(), make_batch(n_sequences, autoparallel.N_TOKENS).to("meta")
            found = sw.suggest(model, batch, ranks=8, memory=MEMORY, **autoparallel.RATES)
            plans = {"`suggest()`": (found.plan, time.process_time() - begin)}
            meter = found.search.meter
            for shape in shapes:
                words = f"AutoParallel on {'x'.join(map(str, shape))}"
                try:
                    *result, n_others = plan_of_autoparallel((name, n_blocks, n_sequences), shape, meter.subject.kinds)
                    plans[words + f", {n_others} kinds of layers changed" * (n_others > 0)] = result
                except RuntimeError as error:
                    print(f"| {name} | {n_sequences} | {words} | fails: {error} |")
            for words, (plan, seconds) in plans.items():
                cost = max(costs_of(meter, plan), key=lambda each: each.seconds)
                layouts = ", ".join(
                    f"{kind.names[0].split('.')[-1]} {layout}"
                    for kind, layout in zip(meter.subject.kinds, plan.layouts, strict=True)
                    if layout != WHOLE
                )
                print(
                    f"| {name} | {n_sequences} | {words} | {plan} "
                    f"| {cost.seconds * 1e3:.2f} ms | {cost.seconds / found.bound_seconds:.2f} "
                    f"| {cost.sent / 1e9:.2f} GB | {cost.n_bytes / 2**30:.1f} GiB | {seconds:.0f} s | {layouts} |",
                    flush=True,
                )


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--layers", type=int, default=32)
    arguments.add_argument("--sequences", type=int, default=1)
    arguments.add_argument(
        "--dlrm", type=int, nargs="+", metavar="RANKS", help="DLRM on so many ranks, instead of Llama"
    )
    arguments.add_argument("--autoparallel", type=int, metavar="BLOCKS", help="so many blocks, instead of Llama")
    arguments.add_argument("--samples", type=int, default=65536)
    options = arguments.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if options.dlrm and not embedding_torchrec.is_installed():
        raise SystemExit(f"TorchRec: {embedding_torchrec.HOW_TO_INSTALL}")
    for n_ranks in options.dlrm or ():
        compare_dlrm(n_ranks, options.samples)
    if options.autoparallel:
        if not autoparallel.is_installed():
            raise SystemExit(f"AutoParallel is not installed. {autoparallel.HOW_TO_INSTALL}")
        compare_autoparallel(options.autoparallel)
    elif not options.dlrm:
        compare_llama(options.layers, options.sequences)


if __name__ == "__main__":
    main()
